AND (:failed_from::timestamptz IS NULL OR job.ended_at >= :failed_from::timestamptz)
AND (:failed_before::timestamptz IS NULL OR job.ended_at < :failed_before::timestamptz)
AND (:reasons::text[] IS NULL OR job.failure_reason = ANY(:reasons::text[]))
AND (:error_types::text[] IS NULL OR /*schema*/last_error_type(job.errors) = ANY(:error_types::text[]))
-- By bytes: what "lower" is in a language costs more than all else.
AND (:stored_text::text IS NULL OR (job.errors IS NOT NULL
  AND strpos(lower(job.errors::text COLLATE pg_catalog."C"), lower(:stored_text::text COLLATE pg_catalog."C")) > 0))
