-- Schedules by name, or all of them; before each the time, also where there is none.
SELECT moment.now, NULL::double precision,
  /*include fragments/schedule_columns*/
FROM (SELECT coalesce(:now::timestamptz, statement_timestamp()) AS now) moment
  LEFT JOIN /*schema*/schedule schedule ON :wanted::text IS NULL
    OR schedule.name IN (SELECT w.name FROM json_to_recordset(:wanted::json) AS w(name text))
  LEFT JOIN /*schema*/job chain ON chain.id = schedule.last_chain_id
ORDER BY schedule.name
