-- Workers take these types again.
DELETE FROM /*schema*/paused_type WHERE type_name = ANY(:type_names::text[])
