-- Schedules by name, or all of them; before each the time, also where there is none.
SELECT moment.now, NULL,
  /*include fragments/schedule_columns*/
FROM (SELECT :now AS now) moment
  LEFT JOIN /*schema*/schedule schedule ON :wanted IS NULL
    OR schedule.name IN (SELECT json_extract(value, '$.name') FROM json_each(:wanted))
  LEFT JOIN /*schema*/job chain ON chain.id = schedule.last_chain_id
ORDER BY schedule.name
