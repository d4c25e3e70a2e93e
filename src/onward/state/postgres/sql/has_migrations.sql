-- Whether there is a table of migrations. Read as any other table: what resolves names, to_regclass too, may still
-- believe what it found before this session waited for the lock of whoever was migrating.
SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = :schema::text AND c.relname = 'migration'
