-- A page of failed jobs, newest first, by why and when they failed: as list_jobs, but found in the index of what failed.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE job.status = 'failed'
  AND (:after::uuid IS NULL OR job.id < :after::uuid)
  AND (:type_names::text[] IS NULL OR job.type_name = ANY(:type_names::text[]))
  AND (:statuses::text[] IS NULL OR 'failed' = ANY(:statuses::text[]))
  AND (:chain_ids::uuid[] IS NULL OR job.chain_id = ANY(:chain_ids::uuid[]))
  AND (:root_ids::uuid[] IS NULL OR job.root_id = ANY(:root_ids::uuid[]))
  AND (:created_from::timestamptz IS NULL OR job.created_at >= :created_from::timestamptz)
  AND (:created_before::timestamptz IS NULL OR job.created_at < :created_before::timestamptz)
  AND (:failed_from::timestamptz IS NULL OR job.ended_at >= :failed_from::timestamptz)
  AND (:failed_before::timestamptz IS NULL OR job.ended_at < :failed_before::timestamptz)
  AND (:reasons::text[] IS NULL OR job.failure_reason = ANY(:reasons::text[]))
  AND (:error_types::text[] IS NULL OR /*schema*/last_error_type(job.errors) = ANY(:error_types::text[]))
ORDER BY job.id DESC
LIMIT :limit
