-- Figures that were put together.
INSERT INTO /*schema*/figure (minute, type_name, writer, started, completed, failed, retried, waits, runs)
SELECT json_extract(value, '$.minute'), json_extract(value, '$.type_name'), '', json_extract(value, '$.started'),
  json_extract(value, '$.completed'), json_extract(value, '$.failed'), json_extract(value, '$.retried'),
  json_extract(value, '$.waits'), json_extract(value, '$.runs')
FROM json_each(:rows)
