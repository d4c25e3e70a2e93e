-- A page of failed jobs, newest first, by why and when they failed: as list_jobs, but found in the index of what failed.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job INDEXED BY /*schema*/job_failed
WHERE job.status = 'failed' AND job.id < coalesce(:after, x'ffffffffffffffffffff')
  AND (:type_names IS NULL OR job.type_name IN (SELECT value FROM json_each(:type_names)))
  AND (:statuses IS NULL OR 'failed' IN (SELECT value FROM json_each(:statuses)))
  AND (:chain_ids IS NULL OR job.chain_id IN (SELECT value FROM json_each(:chain_ids)))
  AND (:root_ids IS NULL OR job.root_id IN (SELECT value FROM json_each(:root_ids)))
  AND (:created_from IS NULL OR job.created_at >= :created_from)
  AND (:created_before IS NULL OR job.created_at < :created_before)
  AND (:failed_from IS NULL OR job.ended_at >= :failed_from)
  AND (:failed_before IS NULL OR job.ended_at < :failed_before)
  AND (:reasons IS NULL OR job.failure_reason IN (SELECT value FROM json_each(:reasons)))
  AND (:error_types IS NULL OR CASE WHEN typeof(job.errors) = 'text' AND json_valid(job.errors) THEN json_extract(job.errors, '$[#-1].type') END
    IN (SELECT value FROM json_each(:error_types)))
ORDER BY job.id DESC
LIMIT :limit
