rule AS MATERIALIZED (
  SELECT json_extract(value, '$[0]') AS type_name, json_extract(value, '$[1]') AS completed,
    json_extract(value, '$[2]') AS failed
  FROM json_each(:rules)
)
