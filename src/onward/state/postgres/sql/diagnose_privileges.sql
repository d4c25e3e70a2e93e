-- What this role may not do here that workers do, or starting jobs does.
SELECT 'USAGE', 'schema ' || n.nspname::text
FROM pg_catalog.pg_namespace n
WHERE n.nspname = :schema::text AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE')
UNION ALL
SELECT wanted.privilege, 'table ' || c.relname::text
FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS wanted(privilege)
WHERE n.nspname = :schema::text AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND NOT pg_catalog.has_table_privilege(c.oid, wanted.privilege)
  AND NOT (c.relname = 'migration' AND wanted.privilege <> 'SELECT')
UNION ALL
SELECT 'EXECUTE', 'function ' || p.proname::text
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = :schema::text AND NOT pg_catalog.has_function_privilege(p.oid, 'EXECUTE')
ORDER BY 1, 2
