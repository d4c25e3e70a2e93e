-- A page of jobs, newest first. Ids are time-ordered and never change, so a cursor stays where it is.
-- A blob sorts behind every text: the first page is a range like the others, found without reading what is above it.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE job.id < coalesce(:after, x'ffffffffffffffffffff')
  /*include fragments/filter_jobs*/
ORDER BY job.id DESC
LIMIT :limit
