-- Workers take these types again; those of them that are held have been passed over. Also where none is to be seen: one that
-- is being started may be passed over before this is committed.
WITH resumed AS (
  DELETE FROM /*schema*/paused_type WHERE type_name = ANY(:type_names::text[])
)
INSERT INTO /*schema*/limit_wake (key, is_range) VALUES ('', true)
