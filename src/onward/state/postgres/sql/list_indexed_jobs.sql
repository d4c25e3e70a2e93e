-- A page of jobs, newest first: as list_jobs, but found in the indexes. Each is looked up by its id, however many the
-- planner expects: it would rather read the whole table.
SELECT /*include fragments/job_columns*/
FROM (
  /*include fragments/indexed_ids*/
  ORDER BY id DESC
  LIMIT :newest::bigint
) found, LATERAL (SELECT * FROM /*schema*/job same WHERE same.id = found.id OFFSET 0) job
WHERE
  /*include fragments/page_of_jobs*/
ORDER BY job.id DESC
LIMIT :limit
