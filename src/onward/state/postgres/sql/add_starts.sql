-- Count starts of a minute, beside those that are counted.
INSERT INTO /*schema*/figure (minute, type_name, writer, started)
SELECT :minute::integer, said.type_name, '', said.started
FROM json_to_recordset(:rows::json) AS said(type_name text, started integer)
ON CONFLICT (minute, type_name, writer) DO UPDATE SET started = figure.started + excluded.started
