-- Rows in the order of their ids, of those that begin a chain which has outlived its time how many rows the chain has;
-- more than a batch has room for are not counted.
WITH /*include fragments/rules*/,
page AS MATERIALIZED (
  SELECT job.id, job.blockers, job.has_dependents, /*include fragments/has_outlived*/ AS is_over
  FROM /*schema*/job job
  WHERE job.id >= :place AND job.id <= :last
  ORDER BY job.id LIMIT :read
)
SELECT id, CASE WHEN is_over THEN 1 + blockers
  + (SELECT count(*) + coalesce(sum(blockers), 0) FROM (
      SELECT later.blockers FROM /*schema*/job later WHERE later.chain_id = page.id AND later.chain_index > 0 LIMIT :rows))
  + CASE WHEN has_dependents IS 0 THEN 0 ELSE (
      SELECT count(*) FROM (SELECT 1 FROM /*schema*/blocker WHERE blocked_by_chain_id = page.id LIMIT :rows)) END
  END
FROM page ORDER BY id
