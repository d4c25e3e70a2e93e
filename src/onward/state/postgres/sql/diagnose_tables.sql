-- How large our tables are, by what the server believes is in them, and how their vacuum goes.
SELECT c.relname::text, pg_catalog.pg_relation_size(c.oid), c.reltuples::double precision,
  coalesce(s.n_dead_tup, 0),
  (SELECT sum(w.avg_width) FROM pg_catalog.pg_stats w
   WHERE w.schemaname = n.nspname AND w.tablename = c.relname)::double precision,
  EXISTS (
    SELECT 1 FROM pg_catalog.pg_options_to_table(c.reloptions) o
    WHERE o.option_name = 'autovacuum_enabled' AND lower(o.option_value) IN ('off', 'false', 'no', '0', 'f', 'n', 'of')),
  (SELECT o.option_value FROM pg_catalog.pg_options_to_table(c.reloptions) o
   WHERE o.option_name = 'autovacuum_vacuum_threshold')::double precision,
  (SELECT o.option_value FROM pg_catalog.pg_options_to_table(c.reloptions) o
   WHERE o.option_name = 'autovacuum_vacuum_scale_factor')::double precision,
  extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum))::double precision,
  pg_catalog.age(c.relfrozenxid)
FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_stat_all_tables s ON s.relid = c.oid
WHERE n.nspname = :schema::text AND c.relkind IN ('r', 'm')
ORDER BY 1
