-- A page of jobs, newest first. Ids are time-ordered and never change, so a cursor stays where it is.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE
  /*include fragments/page_of_jobs*/
ORDER BY job.id DESC
LIMIT :limit
