-- Of the schedules that we declare as they are stored, those whose time has come; before each the time, and in how many
-- seconds the next one is due, also where none is.
WITH ours AS MATERIALIZED (
  SELECT schedule.*, coalesce(:now::timestamptz, statement_timestamp()) AS now
  FROM json_to_recordset(:known::json) AS known(name text, fingerprint text)
    JOIN /*schema*/schedule schedule ON schedule.name = known.name AND schedule.fingerprint = known.fingerprint
  WHERE schedule.paused_at IS NULL AND schedule.next_at IS NOT NULL
)
SELECT moment.now,
  (SELECT extract(epoch FROM /*schema*/readable(min(later.next_at)) - moment.now)::double precision FROM ours later
   WHERE later.next_at > later.now),
  /*include fragments/schedule_columns*/
FROM (SELECT coalesce(:now::timestamptz, statement_timestamp()) AS now) moment
  LEFT JOIN ours schedule ON schedule.next_at <= schedule.now
  LEFT JOIN /*schema*/job chain ON chain.id = schedule.last_chain_id
ORDER BY schedule.next_at, schedule.name
LIMIT :limit
