AND (:failed_from IS NULL OR job.ended_at >= :failed_from)
AND (:failed_before IS NULL OR job.ended_at < :failed_before)
AND (:reasons IS NULL OR job.failure_reason IN (SELECT value FROM json_each(:reasons)))
AND (:error_types IS NULL
  OR CASE WHEN typeof(job.errors) = 'text' AND json_valid(job.errors) THEN json_extract(job.errors, '$[#-1].type') END
    IN (SELECT value FROM json_each(:error_types)))
AND (:stored_text IS NULL
  OR (typeof(job.errors) = 'text' AND instr(lower(job.errors), lower(:stored_text)) > 0))
