-- The failed jobs of chains that are to be retried.
SELECT job.id, job.chain_id, job.type_name, job.failure_reason FROM /*schema*/job job
WHERE job.id IN (
    SELECT header.id FROM /*schema*/job header
    WHERE header.id IN (SELECT value FROM json_each(:chain_ids)) AND header.chain_index = 0
    UNION ALL
    SELECT later.id FROM /*schema*/job later
    WHERE later.chain_id IN (SELECT value FROM json_each(:chain_ids)) AND later.chain_index > 0
  )
  AND job.status = 'failed'
ORDER BY job.id
