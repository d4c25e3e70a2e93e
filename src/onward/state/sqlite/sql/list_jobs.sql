-- A page of jobs, newest first. Ids are time-ordered and never change, so a cursor stays where it is.
-- A blob sorts behind every text: the first page is a range like the others, found without reading what is above it.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE job.id < coalesce(:after, x'ffffffffffffffffffff')
  AND (:type_names IS NULL OR job.type_name IN (SELECT value FROM json_each(:type_names)))
  AND (:statuses IS NULL OR job.status IN (SELECT value FROM json_each(:statuses)))
  AND (:chain_ids IS NULL OR job.chain_id IN (SELECT value FROM json_each(:chain_ids)))
  AND (:root_ids IS NULL OR job.root_id IN (SELECT value FROM json_each(:root_ids)))
  AND (:created_from IS NULL OR job.created_at >= :created_from)
  AND (:created_before IS NULL OR job.created_at < :created_before)
ORDER BY job.id DESC
LIMIT :limit
