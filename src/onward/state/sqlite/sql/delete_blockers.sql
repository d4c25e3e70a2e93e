-- The chains that these chains wait, or waited, for.
SELECT DISTINCT blocker.blocked_by_chain_id
FROM /*schema*/job job JOIN /*schema*/blocker blocker ON blocker.job_id = job.id
WHERE job.id IN (
    SELECT value FROM json_each(:chain_ids)
    UNION ALL
    SELECT later.id FROM /*schema*/job later
    WHERE later.chain_id IN (SELECT value FROM json_each(:chain_ids)) AND later.chain_index > 0
  )
