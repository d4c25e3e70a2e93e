-- How many starts a minute has, now that it is over: what was committed late is among them.
INSERT INTO /*schema*/figure (minute, type_name, writer, started)
SELECT :minute::integer, said.type_name, '', said.started
FROM json_to_recordset(:rows::json) AS said(type_name text, started integer)
ON CONFLICT (minute, type_name, writer) DO UPDATE SET started = excluded.started
WHERE figure.started < excluded.started
