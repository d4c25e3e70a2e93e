-- What a writer's rows of this minute, or the last, are to be; the database's time. Older ones may have been put together.
WITH moment AS (
  SELECT extract(epoch FROM coalesce(:now::timestamptz, statement_timestamp()))::double precision AS now,
    /*include fragments/impatience*/ AS patience  -- outcomes wait behind it
), written AS (
  INSERT INTO /*schema*/figure (minute, type_name, writer, completed, failed, retried, waits, runs)
  SELECT said.minute, said.type_name, :writer::text, said.completed, said.failed, said.retried, said.waits, said.runs
  FROM moment, json_to_recordset(:rows::json) AS said(
    minute integer, type_name text, completed integer, failed integer, retried integer, waits text, runs text)
  WHERE said.minute * 60::double precision BETWEEN moment.now - 120 AND moment.now + 60
  ON CONFLICT (minute, type_name, writer) DO UPDATE SET
    completed = excluded.completed, failed = excluded.failed, retried = excluded.retried,
    waits = excluded.waits, runs = excluded.runs
)
SELECT now FROM moment
