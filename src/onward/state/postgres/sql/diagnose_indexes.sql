-- How large the indexes of our tables are, by what the server believes is in them, and whether they can be used.
SELECT i.relname::text, t.relname::text, x.indisvalid AND x.indisready, pg_catalog.pg_relation_size(i.oid),
  i.reltuples::double precision,
  (SELECT sum(w.avg_width) FROM pg_catalog.pg_attribute a
     JOIN pg_catalog.pg_stats w ON w.schemaname = n.nspname AND w.tablename = t.relname AND w.attname = a.attname
   WHERE a.attrelid = t.oid AND a.attnum = ANY(x.indkey))::double precision
FROM pg_catalog.pg_index x
  JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
  JOIN pg_catalog.pg_class t ON t.oid = x.indrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = :schema::text
ORDER BY 1
