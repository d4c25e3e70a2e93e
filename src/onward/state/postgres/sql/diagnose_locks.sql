-- Who keeps others from tables of Onward's: sessions with a lock that readers or writers wait for, and those for whom
-- somebody with such a lock in mind waits, behind whom everybody else does. Each with its process and who it is, the
-- tables, the mode, for how many seconds, and how many wait for it.
WITH held AS (
  SELECT l.pid, l.granted, l.mode, c.relname
  FROM pg_catalog.pg_locks l
  JOIN pg_catalog.pg_class c ON c.oid = l.relation
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE l.locktype = 'relation' AND n.nspname = :schema AND c.relkind IN ('r', 'p')
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
    AND l.pid <> pg_catalog.pg_backend_pid()
), waiting AS (
  SELECT h.pid, unnest(pg_catalog.pg_blocking_pids(h.pid)) AS holder
  FROM (SELECT DISTINCT pid FROM held WHERE NOT granted) h
)
SELECT a.pid::text || coalesce(' (' || nullif(concat_ws(', ', a.usename, nullif(a.application_name, ''), a.state), '') || ')', ''),
  string_agg(DISTINCT h.relname::text, ', '), string_agg(DISTINCT h.mode, ', '),
  extract(epoch FROM clock_timestamp() - a.xact_start)::double precision,
  (SELECT count(DISTINCT w.pid) FROM waiting w WHERE w.holder = h.pid)::integer
FROM held h JOIN pg_catalog.pg_stat_activity a ON a.pid = h.pid
WHERE h.granted AND (
  h.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  OR h.pid IN (SELECT w.holder FROM waiting w)
)
GROUP BY h.pid, a.pid, a.usename, a.application_name, a.state, a.xact_start
ORDER BY 5 DESC, 4 DESC NULLS LAST LIMIT 20
