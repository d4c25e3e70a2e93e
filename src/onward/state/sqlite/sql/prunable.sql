-- Of these chains, those that have outlived their time and that nothing unfinished waits for.
WITH /*include fragments/rules*/
SELECT job.id, job.chain_failed
FROM json_each(:chain_ids) asked CROSS JOIN /*schema*/job job ON job.id = asked.value
WHERE /*include fragments/has_outlived*/
  AND NOT EXISTS (
    SELECT 1 FROM /*schema*/blocker blocker CROSS JOIN /*schema*/job waiting ON waiting.id = blocker.job_id
    WHERE blocker.blocked_by_chain_id = job.id AND waiting.status NOT IN ('completed', 'failed'))
