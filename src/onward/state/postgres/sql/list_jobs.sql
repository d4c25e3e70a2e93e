-- A page of jobs, newest first. Ids are time-ordered and never change, so a cursor stays where it is.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE (:after::uuid IS NULL OR job.id < :after::uuid)
  /*include fragments/filter_jobs*/
ORDER BY job.id DESC
LIMIT :limit
