-- A page of the keys of a limit that have jobs with a place, or held ones: how many of each, and the next slot of the rate.
-- Found by leaps through both indexes. Not more than a thousand held ones are counted.
WITH RECURSIVE leap(key) AS (
  SELECT min(
    coalesce((SELECT min(limit_key) FROM /*schema*/job INDEXED BY /*schema*/job_held
              WHERE /*include fragments/held_job*/ AND limit_key >= :first), :until),
    coalesce((SELECT min(limit_key) FROM /*schema*/job INDEXED BY /*schema*/job_admitted
              WHERE /*include fragments/placed_job*/ AND limit_key >= :first), :until),
    coalesce((SELECT min(place.key) FROM /*schema*/limit_place place WHERE place.key >= :first), :until))
  UNION ALL
  SELECT min(
    coalesce((SELECT min(limit_key) FROM /*schema*/job INDEXED BY /*schema*/job_held
              WHERE /*include fragments/held_job*/ AND limit_key > leap.key), :until),
    coalesce((SELECT min(limit_key) FROM /*schema*/job INDEXED BY /*schema*/job_admitted
              WHERE /*include fragments/placed_job*/ AND limit_key > leap.key), :until),
    coalesce((SELECT min(place.key) FROM /*schema*/limit_place place WHERE place.key > leap.key), :until))
  FROM leap WHERE leap.key < :until
  LIMIT :limit
)
SELECT leap.key,
  (SELECT count(*) FROM /*schema*/job INDEXED BY /*schema*/job_admitted
   WHERE /*include fragments/placed_job*/ AND limit_key = leap.key)
    + (SELECT count(*) FROM /*schema*/limit_place place WHERE place.key = leap.key),
  (SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_held
    WHERE /*include fragments/held_job*/ AND limit_key = leap.key LIMIT 1000)),
  (SELECT wake_at FROM /*schema*/limit_key paced WHERE paced.key = leap.key AND typeof(wake_at) = 'integer')
FROM leap WHERE leap.key < :until
