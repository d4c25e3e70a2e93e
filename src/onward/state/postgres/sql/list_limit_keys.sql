-- A page of the keys of a limit that have jobs with a place, or held ones: how many of each, and the next slot of the rate.
-- Found by leaps through both indexes. Not more than a thousand held ones are counted.
WITH RECURSIVE leap AS (
  SELECT NULL::text COLLATE "C" AS key, :first::text COLLATE "C" AS first
  UNION ALL
  SELECT next.key, next.key || chr(1)  -- what comes right after it
  FROM leap, LATERAL (SELECT least(
    (SELECT limit_key FROM /*schema*/job
     WHERE /*include fragments/held*/ AND limit_key >= leap.first AND limit_key < :until::text COLLATE "C"
     ORDER BY limit_key LIMIT 1),
    (SELECT limit_key FROM /*schema*/job
     WHERE /*include fragments/placed*/ AND limit_key >= leap.first AND limit_key < :until::text COLLATE "C"
     ORDER BY limit_key LIMIT 1),
    (SELECT place.key FROM /*schema*/limit_place place
     WHERE place.key >= leap.first AND place.key < :until::text COLLATE "C"
     ORDER BY place.key LIMIT 1)) AS key) next
  WHERE next.key IS NOT NULL
), page AS MATERIALIZED (
  SELECT key FROM leap WHERE key IS NOT NULL LIMIT :limit
)
SELECT page.key,
  (SELECT count(*) FROM /*schema*/job WHERE /*include fragments/placed*/ AND limit_key = page.key)
    + (SELECT count(*) FROM /*schema*/limit_place place WHERE place.key = page.key),
  (SELECT count(*) FROM (
    SELECT FROM /*schema*/job WHERE /*include fragments/held*/ AND limit_key = page.key LIMIT 1000) held),
  /*schema*/readable(k.wake_at)
FROM page LEFT JOIN /*schema*/limit_key k ON k.key = page.key
ORDER BY page.key
