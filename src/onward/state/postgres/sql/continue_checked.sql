-- Settle an attempt whose continuation has blockers; a refusal is a row with a problem.
SELECT job_id, chain_id, type_name, status, change, reason, problem
FROM /*schema*/continue_checked(
  :id::uuid, :attempt::integer, :holder::text, :completed_by::text, :progress::double precision, :progress_note::text,
  :items::text::json, coalesce(:now::timestamptz, statement_timestamp()))
