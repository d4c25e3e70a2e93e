-- The types that workers leave alone.
SELECT type_name FROM /*schema*/paused_type ORDER BY type_name
