-- Bring failed chains back.
SELECT job_id, chain_id, type_name, change
FROM /*schema*/retry(:chain_ids::uuid[], coalesce(:now::timestamptz, statement_timestamp()))
