-- Among what waits for the newest chains: blockers of jobs that are gone, and blocked jobs whose blockers are gone, or have
-- all ended.
WITH newest AS MATERIALIZED (
  SELECT job_id, blocked_by_chain_id FROM /*schema*/blocker ORDER BY blocked_by_chain_id DESC LIMIT :most::bigint
)
SELECT DISTINCT
  CASE WHEN j.id IS NULL THEN 'blocker of nothing' WHEN h.id IS NULL THEN 'blocked by what is gone'
    ELSE 'blocked by nothing' END,
  n.job_id::text, j.type_name, NULL::double precision
FROM newest n
  LEFT JOIN /*schema*/job j ON j.id = n.job_id
  LEFT JOIN /*schema*/job h ON h.id = n.blocked_by_chain_id
WHERE j.id IS NULL
  OR j.status = 'blocked' AND (h.id IS NULL OR h.chain_ended_at IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM /*schema*/blocker b JOIN /*schema*/job o ON o.id = b.blocked_by_chain_id
    WHERE b.job_id = j.id AND o.chain_ended_at IS NULL))
LIMIT 100
