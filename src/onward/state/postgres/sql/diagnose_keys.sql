-- Keys of limits, up to so many, with jobs that have long been held though none has a place and no slot is awaited.
WITH RECURSIVE key AS (
  (SELECT limit_key, type_name, scheduled_at FROM /*schema*/job WHERE /*include fragments/held*/
   ORDER BY limit_key, rank, scheduled_at LIMIT 1)
  UNION ALL
  SELECT following.* FROM key CROSS JOIN LATERAL (
    SELECT limit_key, type_name, scheduled_at FROM /*schema*/job
    WHERE /*include fragments/held*/ AND limit_key > key.limit_key
    ORDER BY limit_key, rank, scheduled_at LIMIT 1
  ) following
)
SELECT 'stuck limit', k.limit_key, k.type_name,
  extract(epoch FROM coalesce(:now::timestamptz, statement_timestamp())
    - /*schema*/readable(k.scheduled_at))::double precision
FROM (SELECT * FROM key LIMIT :most::bigint) k
  LEFT JOIN /*schema*/limit_rule r ON r.name = split_part(k.limit_key, '/', 1)
WHERE k.scheduled_at < coalesce(:now::timestamptz, statement_timestamp()) - make_interval(secs => :late::double precision)
  AND coalesce(r.places, 1) > 0
  AND NOT EXISTS (SELECT 1 FROM /*schema*/paused_type p WHERE p.type_name = k.type_name)
  AND NOT EXISTS (
    SELECT 1 FROM /*schema*/job j
    WHERE j.limit_key = k.limit_key AND j.limit_key IS NOT NULL
      AND (j.status = 'running' OR j.status = 'pending' AND NOT j.deferred AND j.admitted_after = j.attempt))
  AND NOT EXISTS (SELECT 1 FROM /*schema*/limit_place p WHERE p.key = k.limit_key)
  AND NOT EXISTS (
    SELECT 1 FROM /*schema*/limit_key a
    WHERE a.key = k.limit_key AND a.wake_at > coalesce(:now::timestamptz, statement_timestamp()))
LIMIT 100
