-- Workers leave these types alone until they are resumed.
INSERT INTO /*schema*/paused_type (type_name, paused_at)
SELECT value, :now FROM json_each(:type_names)
WHERE 1
ON CONFLICT (type_name) DO NOTHING
