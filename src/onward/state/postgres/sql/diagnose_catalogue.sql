-- What a schema holds: kind, table, name and definition, in which the schema's own name is left out.
WITH place AS (
  SELECT oid, pg_catalog.quote_ident(nspname) || '.' AS dot, '"' || nspname::text || '".' AS quoted
  FROM pg_catalog.pg_namespace WHERE nspname = :schema::text
), relation AS (
  SELECT c.oid, c.relname::text AS name, c.relpersistence, place.dot
  FROM pg_catalog.pg_class c JOIN place ON c.relnamespace = place.oid
  WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition  -- how many parts a table has is the data's business
)
SELECT 'table', r.name, r.name, concat_ws(' ',
  CASE r.relpersistence WHEN 'u' THEN 'unlogged' ELSE 'logged' END, pg_catalog.pg_get_partkeydef(r.oid))
FROM relation r
UNION ALL
SELECT 'column', r.name, a.attname::text,
  concat_ws(' ', pg_catalog.format_type(a.atttypid, a.atttypmod),
    'collate ' || (SELECT o.collname::text FROM pg_catalog.pg_collation o
                   WHERE o.oid = a.attcollation AND o.collname <> 'default'),
    CASE WHEN a.attnotnull THEN 'not null' END,
    'default ' || pg_catalog.pg_get_expr(d.adbin, d.adrelid),
    CASE WHEN a.attidentity <> '' THEN 'identity' END)
FROM relation r
  JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
UNION ALL
SELECT 'constraint', r.name, k.conname::text, pg_catalog.pg_get_constraintdef(k.oid)
FROM relation r JOIN pg_catalog.pg_constraint k ON k.conrelid = r.oid AND k.contype IN ('c', 'p', 'u', 'f')
UNION ALL
SELECT 'index', r.name, i.relname::text, pg_catalog.replace(
  pg_catalog.replace(pg_catalog.pg_get_indexdef(i.oid), ' ON ONLY ' || r.dot, ' ON '), ' ON ' || r.dot, ' ON ')
FROM relation r
  JOIN pg_catalog.pg_index x ON x.indrelid = r.oid
  JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
UNION ALL
SELECT 'trigger', r.name, t.tgname::text,
  pg_catalog.replace(pg_catalog.pg_get_triggerdef(t.oid), r.dot, '')
  || CASE t.tgenabled WHEN 'D' THEN ' disabled' ELSE '' END
FROM relation r JOIN pg_catalog.pg_trigger t ON t.tgrelid = r.oid AND NOT t.tgisinternal
UNION ALL
SELECT 'function', '',
  p.proname::text || '(' || pg_catalog.replace(pg_catalog.pg_get_function_identity_arguments(p.oid), place.dot, '') || ')',
  concat_ws(' ', pg_catalog.replace(pg_catalog.pg_get_function_result(p.oid), place.dot, ''), p.provolatile::text,
    p.prosecdef::text, array_to_string(p.proconfig, ', '),
    pg_catalog.md5(pg_catalog.replace(p.prosrc, place.quoted, '')))
FROM place JOIN pg_catalog.pg_proc p ON p.pronamespace = place.oid
WHERE p.prokind = 'f'
