-- Which types and versions have jobs that are due, for how many microseconds the oldest has been, and whether the type is
-- paused: one seek for each version and rank that there is, whatever the backlog. Of what limits hold, the first of each key.
WITH RECURSIVE kind(place) AS (
  SELECT (
    SELECT rowid FROM /*schema*/job
    WHERE status = 'pending' AND deferred = 0 AND (limit_key IS NULL OR admitted_after = attempt)
    ORDER BY type_name, payload_version, rank, scheduled_at, id LIMIT 1)
  UNION ALL
  -- Each a range of the index: of a comparison of rows it would use the first column only.
  SELECT coalesce(
    (SELECT next.rowid FROM /*schema*/job AS next
     WHERE next.status = 'pending' AND next.deferred = 0
       AND (next.limit_key IS NULL OR next.admitted_after = next.attempt)
       AND next.type_name = here.type_name AND next.payload_version = here.payload_version AND next.rank > here.rank
     ORDER BY next.rank, next.scheduled_at, next.id LIMIT 1),
    (SELECT next.rowid FROM /*schema*/job AS next
     WHERE next.status = 'pending' AND next.deferred = 0
       AND (next.limit_key IS NULL OR next.admitted_after = next.attempt)
       AND next.type_name = here.type_name AND next.payload_version > here.payload_version
     ORDER BY next.payload_version, next.rank, next.scheduled_at, next.id LIMIT 1),
    (SELECT next.rowid FROM /*schema*/job AS next
     WHERE next.status = 'pending' AND next.deferred = 0
       AND (next.limit_key IS NULL OR next.admitted_after = next.attempt)
       AND next.type_name > here.type_name
     ORDER BY next.type_name, next.payload_version, next.rank, next.scheduled_at, next.id LIMIT 1))
  FROM kind JOIN /*schema*/job AS here ON here.rowid = kind.place
  LIMIT 10000
), key(place) AS (
  SELECT (
    SELECT rowid FROM /*schema*/job INDEXED BY /*schema*/job_held
    WHERE /*include fragments/held_job*/
    ORDER BY limit_key, rank, scheduled_at, id LIMIT 1)
  UNION ALL
  SELECT (
    SELECT next.rowid FROM /*schema*/job AS next INDEXED BY /*schema*/job_held
    WHERE next.status = 'pending' AND next.deferred = 0 AND next.limit_key IS NOT NULL
      AND next.admitted_after IS NOT next.attempt AND next.limit_key > here.limit_key
    ORDER BY next.limit_key, next.rank, next.scheduled_at, next.id LIMIT 1)
  FROM key JOIN /*schema*/job AS here ON here.rowid = key.place
  LIMIT 1000
)
SELECT job.type_name, job.payload_version, :now - min(job.scheduled_at),
  EXISTS (SELECT 1 FROM /*schema*/paused_type AS paused WHERE paused.type_name = job.type_name)
FROM (SELECT place FROM kind UNION ALL SELECT place FROM key) AS head JOIN /*schema*/job AS job ON job.rowid = head.place
GROUP BY job.type_name, job.payload_version
ORDER BY job.type_name, job.payload_version
LIMIT :most
