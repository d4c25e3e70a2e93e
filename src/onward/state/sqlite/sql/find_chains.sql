-- Chains by id: first what the header knows, then the job the chain has come to.
SELECT header.id, header.type_name, header.created_at, header.chain_ended_at, /*include fragments/job_columns*/
FROM /*schema*/job header
  CROSS JOIN /*schema*/job job ON job.id = coalesce((
    SELECT latest.id FROM /*schema*/job latest
    WHERE latest.chain_id = header.id AND latest.chain_index > 0
    ORDER BY latest.chain_index DESC LIMIT 1
  ), header.id)
WHERE header.id IN (SELECT value FROM json_each(:ids)) AND header.chain_index = 0
