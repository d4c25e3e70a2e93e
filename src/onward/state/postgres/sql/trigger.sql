-- Run scheduled jobs now.
SELECT job_id, chain_id, type_name, change, reason
FROM /*schema*/run_now(:chain_ids::uuid[], coalesce(:now::timestamptz, statement_timestamp()))
