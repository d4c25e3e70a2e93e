-- Of the next rows in the order of their ids, how many begin a chain that would be pruned: completed ones, failed ones, and
-- where to go on.
WITH /*include fragments/rules*/,
page AS MATERIALIZED (
  SELECT job.id, job.chain_failed, job.has_dependents, /*include fragments/has_outlived*/ AS is_over
  FROM /*schema*/job job WHERE job.id >= :place ORDER BY job.id LIMIT :rows + 1
), following AS MATERIALIZED (
  SELECT id FROM page ORDER BY id LIMIT 1 OFFSET :rows
), over AS MATERIALIZED (
  SELECT page.chain_failed FROM page
  WHERE page.is_over AND page.id < coalesce((SELECT id FROM following), 'g')
    AND NOT (page.has_dependents IS NOT 0 AND EXISTS (
      SELECT 1 FROM /*schema*/blocker blocker CROSS JOIN /*schema*/job waiting ON waiting.id = blocker.job_id
      WHERE blocker.blocked_by_chain_id = page.id AND waiting.status NOT IN ('completed', 'failed')))
)
SELECT (SELECT count(*) FROM over WHERE NOT chain_failed), (SELECT count(*) FROM over WHERE chain_failed),
  (SELECT id FROM following)
