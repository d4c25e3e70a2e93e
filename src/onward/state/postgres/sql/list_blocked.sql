-- A page of the jobs that wait, or waited, for a chain, newest first.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE job.id IN (SELECT b.job_id FROM /*schema*/blocker b WHERE b.blocked_by_chain_id = :chain_id::uuid)
  AND (:after::uuid IS NULL OR job.id < :after::uuid)
ORDER BY job.id DESC
LIMIT :limit
