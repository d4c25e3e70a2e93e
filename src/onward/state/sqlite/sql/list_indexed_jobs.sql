-- A page of jobs, newest first: as list_jobs, but found in the indexes.
SELECT /*include fragments/job_columns*/
FROM (
  /*include fragments/indexed_ids*/
  ORDER BY id DESC
  LIMIT coalesce(:newest, -1)
) found CROSS JOIN /*schema*/job job ON job.id = found.id
WHERE
  /*include fragments/page_of_jobs*/
ORDER BY job.id DESC
LIMIT :limit
