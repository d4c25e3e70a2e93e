-- Figures that were put together.
INSERT INTO /*schema*/figure (minute, type_name, writer, started, completed, failed, retried, waits, runs)
SELECT said.minute, said.type_name, '', said.started, said.completed, said.failed, said.retried, said.waits, said.runs
FROM json_to_recordset(:rows::json) AS said(
  minute integer, type_name text, started integer, completed integer, failed integer, retried integer, waits text, runs text)
