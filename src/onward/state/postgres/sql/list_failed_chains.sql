-- A page of failed chains, newest first, by why and when they failed: as list_chains, but found in the index of what
-- failed. A job that failed is the one its chain has come to.
SELECT header.id, header.type_name, /*schema*/readable(header.created_at),
  /*schema*/readable(header.chain_ended_at), /*include fragments/job_columns*/
FROM /*schema*/job job JOIN /*schema*/job header ON header.id = job.chain_id
WHERE job.status = 'failed' AND header.chain_index = 0
  AND (:after::uuid IS NULL OR header.id < :after::uuid)
  AND (:type_names::text[] IS NULL OR header.type_name = ANY(:type_names::text[]))
  AND (:statuses::text[] IS NULL OR 'failed' = ANY(:statuses::text[]))
  AND (:chain_ids::uuid[] IS NULL OR header.id = ANY(:chain_ids::uuid[]))
  AND (:root_ids::uuid[] IS NULL OR header.root_id = ANY(:root_ids::uuid[]))
  AND (:created_from::timestamptz IS NULL OR header.created_at >= :created_from::timestamptz)
  AND (:created_before::timestamptz IS NULL OR header.created_at < :created_before::timestamptz)
  AND (:failed_from::timestamptz IS NULL OR job.ended_at >= :failed_from::timestamptz)
  AND (:failed_before::timestamptz IS NULL OR job.ended_at < :failed_before::timestamptz)
  AND (:reasons::text[] IS NULL OR job.failure_reason = ANY(:reasons::text[]))
  AND (:error_types::text[] IS NULL OR /*schema*/last_error_type(job.errors) = ANY(:error_types::text[]))
ORDER BY header.id DESC
LIMIT :limit
