-- Our tables, indexes and triggers, with the columns of each table: kind, table, name and definition.
SELECT m.type, m.tbl_name, m.name, CASE m.type WHEN 'table' THEN '' ELSE m.sql END
FROM sqlite_master AS m
WHERE substr(m.tbl_name, 1, length(:prefix)) = :prefix AND m.name NOT LIKE 'sqlite_%'
UNION ALL
SELECT 'column', m.name, c.name,
  c.type || CASE WHEN c."notnull" THEN ' not null' ELSE '' END || coalesce(' default ' || c.dflt_value, '')
  || CASE WHEN c.pk > 0 THEN ' key ' || c.pk ELSE '' END
FROM sqlite_master AS m JOIN pragma_table_info(m.name) AS c
WHERE m.type = 'table' AND substr(m.name, 1, length(:prefix)) = :prefix
