-- The chains that are to be retried, each with the job it has come to.
SELECT header.id, header.type_name, header.deduplication_key, job.id, job.type_name, job.status, job.blockers,
  job.runs_anyway
FROM /*schema*/job header
  CROSS JOIN /*schema*/job job ON job.id = coalesce((
    SELECT latest.id FROM /*schema*/job latest
    WHERE latest.chain_id = header.id AND latest.chain_index > 0
    ORDER BY latest.chain_index DESC LIMIT 1
  ), header.id)
WHERE header.id IN (SELECT value FROM json_each(:chain_ids)) AND header.chain_index = 0
