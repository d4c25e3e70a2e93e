-- Of the next rows in the order of their ids, how many begin a chain that would be pruned: completed ones, failed ones, and
-- where to go on.
WITH rule AS (
  SELECT :type_names::text[] AS type_names, :keep_completed::double precision[] AS keep_completed,
    :keep_failed::double precision[] AS keep_failed, coalesce(:now::timestamptz, statement_timestamp()) AS at
), page AS MATERIALIZED (
  SELECT j.id, j.chain_failed, j.has_dependents, coalesce(
    /*include fragments/has_outlived*/, false) AS is_over
  FROM rule CROSS JOIN LATERAL (
    SELECT id, chain_index, type_name, chain_ended_at, chain_failed, has_dependents FROM /*schema*/job
    WHERE id >= :place::uuid ORDER BY id LIMIT :rows + 1
  ) j
), following AS MATERIALIZED (
  SELECT id FROM page ORDER BY id OFFSET :rows LIMIT 1
), over AS (
  SELECT page.chain_failed FROM page
  WHERE is_over AND (page.id < (SELECT id FROM following)) IS NOT FALSE
    AND NOT (has_dependents AND EXISTS (
      SELECT FROM /*schema*/blocker b JOIN /*schema*/job w ON w.id = b.job_id
      WHERE b.blocked_by_chain_id = page.id AND w.status NOT IN ('completed', 'failed')))
)
SELECT (SELECT count(*) FROM over WHERE NOT chain_failed), (SELECT count(*) FROM over WHERE chain_failed),
  (SELECT id::text FROM following)
