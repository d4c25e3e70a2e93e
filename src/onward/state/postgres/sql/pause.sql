-- Workers leave these types alone until they are resumed.
INSERT INTO /*schema*/paused_type (type_name, paused_at)
SELECT name, coalesce(:now::timestamptz, statement_timestamp()) FROM unnest(:type_names::text[]) AS asked(name)
ON CONFLICT (type_name) DO NOTHING
