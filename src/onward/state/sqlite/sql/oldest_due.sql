-- For how many microseconds the oldest job of each type that may be taken has been due: one seek for each version and rank
-- that there is, whatever the backlog.
WITH RECURSIVE first(name, place) AS (
  SELECT asked.value, (
    SELECT rowid FROM /*schema*/job
    WHERE type_name = asked.value AND status = 'pending' AND deferred = 0
    ORDER BY payload_version, rank, scheduled_at, id LIMIT 1)
  FROM json_each(:type_names) AS asked
  UNION ALL
  SELECT first.name, (
    SELECT next.rowid FROM /*schema*/job AS next
    WHERE next.type_name = first.name AND next.status = 'pending' AND next.deferred = 0
      AND (next.payload_version, next.rank) > (here.payload_version, here.rank)
    ORDER BY next.payload_version, next.rank, next.scheduled_at, next.id LIMIT 1)
  FROM first JOIN /*schema*/job AS here ON here.rowid = first.place
)
SELECT first.name, :now - min(job.scheduled_at)
FROM first JOIN /*schema*/job AS job ON job.rowid = first.place
GROUP BY first.name
