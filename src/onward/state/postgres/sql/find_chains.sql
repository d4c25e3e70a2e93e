-- Chains by id: first what the header knows, then the job the chain has come to.
SELECT header.id, header.type_name, /*schema*/readable(header.created_at),
  /*schema*/readable(header.chain_ended_at), /*include fragments/job_columns*/
FROM /*schema*/job header,
  LATERAL (
    SELECT latest.id FROM /*schema*/job latest
    WHERE latest.id = header.id OR (latest.chain_id = header.id AND latest.chain_index > 0)
    ORDER BY latest.chain_index DESC LIMIT 1
  ) current
  JOIN /*schema*/job job ON job.id = current.id
WHERE header.id = ANY(:ids::uuid[]) AND header.chain_index = 0
