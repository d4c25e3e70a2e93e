-- The job a chain has come to.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job header
  CROSS JOIN /*schema*/job job ON job.id = coalesce((
    SELECT latest.id FROM /*schema*/job latest
    WHERE latest.chain_id = header.id AND latest.chain_index > 0
    ORDER BY latest.chain_index DESC LIMIT 1
  ), header.id)
WHERE header.id = :chain_id AND header.chain_index = 0
