-- Count starts of a minute, beside those that are counted.
INSERT INTO /*schema*/figure AS figure (minute, type_name, writer, started)
SELECT :minute, json_extract(value, '$.type_name'), '', json_extract(value, '$.started') FROM json_each(:rows)
WHERE 1
ON CONFLICT (minute, type_name, writer) DO UPDATE SET started = figure.started + excluded.started
