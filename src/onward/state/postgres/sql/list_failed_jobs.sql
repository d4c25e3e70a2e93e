-- A page of failed jobs, newest first, by why and when they failed: as list_jobs, but found in the index of what failed.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE job.status = 'failed'
  AND (:after::uuid IS NULL OR job.id < :after::uuid)
  /*include fragments/filter_jobs*/
  /*include fragments/filter_failed*/
ORDER BY job.id DESC
LIMIT :limit
