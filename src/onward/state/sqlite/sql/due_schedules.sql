-- Of the schedules that we declare as they are stored, those whose time has come; before each the time, and in how many
-- seconds the next one is due, also where none is.
WITH ours AS MATERIALIZED (
  SELECT schedule.*
  FROM json_each(:known) known
    JOIN /*schema*/schedule schedule ON schedule.name = json_extract(known.value, '$.name')
      AND schedule.fingerprint = json_extract(known.value, '$.fingerprint')
  WHERE schedule.paused_at IS NULL AND typeof(schedule.next_at) = 'integer'  -- a hand may have written anything there
)
SELECT moment.now,
  (SELECT (min(later.next_at) - moment.now) / 1000000.0 FROM ours later WHERE later.next_at > moment.now),
  /*include fragments/schedule_columns*/
FROM (SELECT :now AS now) moment
  LEFT JOIN ours schedule ON schedule.next_at <= moment.now
  LEFT JOIN /*schema*/job chain ON chain.id = schedule.last_chain_id
ORDER BY schedule.next_at, schedule.name
LIMIT :limit
