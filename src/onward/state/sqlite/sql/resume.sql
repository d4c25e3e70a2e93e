-- Workers take these types again.
DELETE FROM /*schema*/paused_type WHERE type_name IN (SELECT value FROM json_each(:type_names))
