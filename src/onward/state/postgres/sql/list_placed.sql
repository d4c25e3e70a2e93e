-- The jobs that have a place of a key.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE job.id IN (
  SELECT id FROM /*schema*/job WHERE /*include fragments/placed*/ AND limit_key = :key::text
  UNION ALL
  SELECT place.job_id FROM /*schema*/limit_place place WHERE place.key = :key::text)
ORDER BY job.id
LIMIT :limit
