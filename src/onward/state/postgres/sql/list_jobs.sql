-- A page of jobs, newest first. Ids are time-ordered and never change, so a cursor stays where it is.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE (:after::uuid IS NULL OR job.id < :after::uuid)
  AND (:type_names::text[] IS NULL OR job.type_name = ANY(:type_names::text[]))
  AND (:statuses::text[] IS NULL OR job.status = ANY(:statuses::text[]))
  AND (:chain_ids::uuid[] IS NULL OR job.chain_id = ANY(:chain_ids::uuid[]))
  AND (:root_ids::uuid[] IS NULL OR job.root_id = ANY(:root_ids::uuid[]))
  AND (:created_from::timestamptz IS NULL OR job.created_at >= :created_from::timestamptz)
  AND (:created_before::timestamptz IS NULL OR job.created_at < :created_before::timestamptz)
ORDER BY job.id DESC
LIMIT :limit
