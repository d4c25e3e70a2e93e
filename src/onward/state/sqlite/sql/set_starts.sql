-- How many starts a minute has, now that it is over: what was committed late is among them.
INSERT INTO /*schema*/figure AS figure (minute, type_name, writer, started)
SELECT :minute, json_extract(value, '$.type_name'), '', json_extract(value, '$.started') FROM json_each(:rows)
WHERE 1
ON CONFLICT (minute, type_name, writer) DO UPDATE SET started = excluded.started
WHERE figure.started < excluded.started
