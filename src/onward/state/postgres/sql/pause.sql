-- Workers leave these types alone until they are resumed.
SELECT /*schema*/pause_types(:type_names::text[], coalesce(:now::timestamptz, statement_timestamp()))
