-- For how many microseconds the oldest job of each type that may be taken has been due: one seek for each version and rank
-- that there is, whatever the backlog; what is held by limits is gone through.
WITH RECURSIVE first(name, place) AS (
  SELECT asked.value, (
    SELECT rowid FROM /*schema*/job
    WHERE type_name = asked.value AND status = 'pending' AND deferred = 0
      AND (limit_key IS NULL OR admitted_after = attempt)
    ORDER BY payload_version, rank, scheduled_at, id LIMIT 1)
  FROM json_each(:type_names) AS asked
  UNION ALL
  -- Each a range of the index: of a comparison of rows it would use the first column only.
  SELECT first.name, coalesce(
    (SELECT next.rowid FROM /*schema*/job AS next
     WHERE next.type_name = first.name AND next.status = 'pending' AND next.deferred = 0
       AND (next.limit_key IS NULL OR next.admitted_after = next.attempt)
       AND next.payload_version = here.payload_version AND next.rank > here.rank
     ORDER BY next.rank, next.scheduled_at, next.id LIMIT 1),
    (SELECT next.rowid FROM /*schema*/job AS next
     WHERE next.type_name = first.name AND next.status = 'pending' AND next.deferred = 0
       AND (next.limit_key IS NULL OR next.admitted_after = next.attempt)
       AND next.payload_version > here.payload_version
     ORDER BY next.payload_version, next.rank, next.scheduled_at, next.id LIMIT 1))
  FROM first JOIN /*schema*/job AS here ON here.rowid = first.place
)
SELECT head.name, :now - min(head.scheduled_at)
FROM (
  SELECT first.name, job.scheduled_at FROM first JOIN /*schema*/job AS job ON job.rowid = first.place
  UNION ALL
  SELECT type_name, scheduled_at FROM /*schema*/job INDEXED BY /*schema*/job_held
  WHERE /*include fragments/held_job*/ AND type_name IN (SELECT value FROM json_each(:type_names))
) AS head
GROUP BY head.name
