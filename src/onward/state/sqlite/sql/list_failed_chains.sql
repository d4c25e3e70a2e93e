-- A page of failed chains, newest first, by why and when they failed: as list_chains, but found in the index of what
-- failed. A job that failed is the one its chain has come to.
SELECT header.id, header.type_name, header.created_at, header.chain_ended_at, /*include fragments/job_columns*/
FROM /*schema*/job job INDEXED BY /*schema*/job_failed CROSS JOIN /*schema*/job header ON header.id = job.chain_id
WHERE job.status = 'failed' AND header.chain_index = 0 AND header.id < coalesce(:after, x'ffffffffffffffffffff')
  AND (:type_names IS NULL OR header.type_name IN (SELECT value FROM json_each(:type_names)))
  AND (:statuses IS NULL OR 'failed' IN (SELECT value FROM json_each(:statuses)))
  AND (:chain_ids IS NULL OR header.id IN (SELECT value FROM json_each(:chain_ids)))
  AND (:root_ids IS NULL OR header.root_id IN (SELECT value FROM json_each(:root_ids)))
  AND (:created_from IS NULL OR header.created_at >= :created_from)
  AND (:created_before IS NULL OR header.created_at < :created_before)
  AND (:failed_from IS NULL OR job.ended_at >= :failed_from)
  AND (:failed_before IS NULL OR job.ended_at < :failed_before)
  AND (:reasons IS NULL OR job.failure_reason IN (SELECT value FROM json_each(:reasons)))
  AND (:error_types IS NULL OR CASE WHEN typeof(job.errors) = 'text' AND json_valid(job.errors) THEN json_extract(job.errors, '$[#-1].type') END
    IN (SELECT value FROM json_each(:error_types)))
ORDER BY header.id DESC
LIMIT :limit
