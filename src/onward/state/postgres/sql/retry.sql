-- Bring failed chains back, or say why not.
SELECT job_id, chain_id, type_name, change, other
FROM /*schema*/retry(:chain_ids::uuid[], coalesce(:now::timestamptz, statement_timestamp()))
