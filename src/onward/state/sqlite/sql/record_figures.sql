-- What a writer's rows of this minute, or the last, are to be. Older ones may have been put together.
INSERT INTO /*schema*/figure (minute, type_name, writer, completed, failed, retried, waits, runs)
SELECT json_extract(value, '$.minute'), json_extract(value, '$.type_name'), :writer, json_extract(value, '$.completed'),
  json_extract(value, '$.failed'), json_extract(value, '$.retried'), json_extract(value, '$.waits'),
  json_extract(value, '$.runs')
FROM json_each(:rows)
WHERE json_extract(value, '$.minute') * 60000000 BETWEEN :now - 120000000 AND :now + 60000000
ON CONFLICT (minute, type_name, writer) DO UPDATE SET
  completed = excluded.completed, failed = excluded.failed, retried = excluded.retried,
  waits = excluded.waits, runs = excluded.runs
