-- Keys of limits, up to so many, with jobs that have long been held though none has a place and no slot is awaited.
WITH RECURSIVE key(place) AS (
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
  LIMIT :most
)
SELECT 'stuck limit', k.limit_key, k.type_name, (:now - k.scheduled_at) / 1000000.0
FROM key JOIN /*schema*/job AS k ON k.rowid = key.place
  LEFT JOIN /*schema*/limit_rule AS r ON r.name = substr(k.limit_key, 1, instr(k.limit_key, '/') - 1)
WHERE k.scheduled_at < :now - :late AND coalesce(r.places, 1) > 0
  AND NOT EXISTS (SELECT 1 FROM /*schema*/paused_type AS p WHERE p.type_name = k.type_name)
  AND NOT EXISTS (
    SELECT 1 FROM /*schema*/job AS j
    WHERE j.limit_key = k.limit_key AND j.limit_key IS NOT NULL
      AND (j.status = 'running' OR j.status = 'pending' AND j.deferred = 0 AND j.admitted_after = j.attempt))
  AND NOT EXISTS (SELECT 1 FROM /*schema*/limit_place AS p WHERE p.key = k.limit_key)
  AND NOT EXISTS (SELECT 1 FROM /*schema*/limit_key AS a WHERE a.key = k.limit_key AND a.wake_at > :now)
LIMIT 100
