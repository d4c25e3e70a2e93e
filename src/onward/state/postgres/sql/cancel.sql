-- Cancel chains: a waiting job fails at once; a running one is asked to stop, and an output that commits first wins.
SELECT job_id, chain_id, type_name, change, reason
FROM /*schema*/cancel(:chain_ids::uuid[], :cascade::boolean, coalesce(:now::timestamptz, statement_timestamp()))
