-- A page of failed jobs, newest first, by why and when they failed: as list_jobs, but found in the index of what failed.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job INDEXED BY /*schema*/job_failed
WHERE job.status = 'failed' AND job.id < coalesce(:after, x'ffffffffffffffffffff')
  /*include fragments/filter_jobs*/
  /*include fragments/filter_failed*/
ORDER BY job.id DESC
LIMIT :limit
