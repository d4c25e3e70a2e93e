-- A page of the jobs that wait, or waited, for a chain, newest first.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE job.id IN (SELECT blocker.job_id FROM /*schema*/blocker blocker WHERE blocker.blocked_by_chain_id = :chain_id)
  AND job.id < coalesce(:after, x'ffffffffffffffffffff')
ORDER BY job.id DESC
LIMIT :limit
