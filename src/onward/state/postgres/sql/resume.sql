-- Workers take these types again; those of them that are held have been passed over.
WITH resumed AS (
  DELETE FROM /*schema*/paused_type WHERE type_name = ANY(:type_names::text[])
)
INSERT INTO /*schema*/limit_wake (key, is_range)
SELECT '', true WHERE EXISTS (SELECT FROM /*schema*/job WHERE /*include fragments/held*/)
