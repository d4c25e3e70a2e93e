given AS MATERIALIZED (
  SELECT value FROM json_each(:claims)
), claim AS MATERIALIZED (
  SELECT json_extract(value, '$[0]') AS type_name, json_extract(value, '$[1]') AS payload_version,
    json_extract(value, '$[2]') AS lease
  FROM given
  WHERE json_extract(value, '$[0]') NOT IN (SELECT type_name FROM /*schema*/paused_type)
)
