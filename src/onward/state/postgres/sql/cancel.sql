-- Cancel chains: a waiting job fails at once; a running one is asked to stop, and an outcome that commits first wins.
SELECT job_id, chain_id, type_name, change
FROM /*schema*/cancel(:chain_ids::uuid[], coalesce(:now::timestamptz, statement_timestamp()))
