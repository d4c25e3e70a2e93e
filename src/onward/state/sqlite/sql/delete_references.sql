-- Unfinished jobs elsewhere that wait for these chains.
SELECT blocker.blocked_by_chain_id, job.id
FROM json_each(:chain_ids) asked
  CROSS JOIN /*schema*/blocker blocker ON blocker.blocked_by_chain_id = asked.value
  CROSS JOIN /*schema*/job job ON job.id = blocker.job_id
WHERE job.chain_id NOT IN (SELECT value FROM json_each(:chain_ids)) AND job.status NOT IN ('completed', 'failed')
ORDER BY 1, 2
