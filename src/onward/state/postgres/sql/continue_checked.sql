-- Settle an attempt whose continuation has blockers; a refusal is a row with a problem.
SELECT job_id, chain_id, type_name, status, change, reason, problem
FROM (SELECT CASE WHEN :impatient::boolean THEN /*include fragments/impatience*/ END AS patience) first
  CROSS JOIN LATERAL /*schema*/continue_checked(
  -- Of what comes first, so that it does.
  CASE WHEN first.patience IS NULL OR first.patience <> '' THEN :id::uuid END, :attempt::integer, :holder::text, :completed_by::text, :progress::double precision, :progress_note::text,
  :items::text::json, coalesce(:now::timestamptz, statement_timestamp()))
