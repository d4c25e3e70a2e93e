-- Which types and versions have jobs that are due, for how many seconds the oldest has been, and whether the type is paused:
-- a seek for each version and for each of its ranks, up to a hundred, whatever the backlog. Of what limits hold, the first
-- of each key, up to a thousand.
WITH RECURSIVE kind AS (
  (SELECT type_name, payload_version FROM /*schema*/job
   WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
   ORDER BY type_name, payload_version LIMIT 1)
  UNION ALL
  SELECT following.* FROM kind CROSS JOIN LATERAL (
    SELECT type_name, payload_version FROM /*schema*/job
    WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
      AND (type_name, payload_version) > (kind.type_name, kind.payload_version)
    ORDER BY type_name, payload_version LIMIT 1
  ) following
), key AS (
  (SELECT limit_key, type_name, payload_version, scheduled_at FROM /*schema*/job WHERE /*include fragments/held*/
   ORDER BY limit_key, rank, scheduled_at LIMIT 1)
  UNION ALL
  SELECT following.* FROM key CROSS JOIN LATERAL (
    SELECT limit_key, type_name, payload_version, scheduled_at FROM /*schema*/job
    WHERE /*include fragments/held*/ AND limit_key > key.limit_key
    ORDER BY limit_key, rank, scheduled_at LIMIT 1
  ) following
), head AS (
  SELECT known.type_name, known.payload_version, ranked.scheduled_at
  FROM (SELECT * FROM kind LIMIT :most::bigint) known CROSS JOIN LATERAL (
    WITH RECURSIVE first AS (
      (SELECT rank, scheduled_at FROM /*schema*/job
       WHERE type_name = known.type_name AND payload_version = known.payload_version
         AND status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
       ORDER BY rank, scheduled_at LIMIT 1)
      UNION ALL
      SELECT following.* FROM first CROSS JOIN LATERAL (
        SELECT rank, scheduled_at FROM /*schema*/job
        WHERE type_name = known.type_name AND payload_version = known.payload_version
          AND status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
          AND rank > first.rank
        ORDER BY rank, scheduled_at LIMIT 1
      ) following
    )
    SELECT scheduled_at FROM first LIMIT 100
  ) ranked
  UNION ALL
  (SELECT type_name, payload_version, scheduled_at FROM key LIMIT 1000)
)
SELECT head.type_name, head.payload_version,
  extract(epoch FROM coalesce(:now::timestamptz, statement_timestamp())
    - /*schema*/readable(min(head.scheduled_at)))::double precision,
  EXISTS (SELECT 1 FROM /*schema*/paused_type p WHERE p.type_name = head.type_name)
FROM head
GROUP BY head.type_name, head.payload_version
ORDER BY head.type_name, head.payload_version
LIMIT :most::bigint
