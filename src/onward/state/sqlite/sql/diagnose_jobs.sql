-- Among the newest jobs: chains that have not ended and of which nothing runs or waits, and jobs that are blocked by nothing.
WITH newest AS MATERIALIZED (
  SELECT id, chain_index, type_name, status, chain_ended_at FROM /*schema*/job ORDER BY id DESC LIMIT :most
)
SELECT CASE n.status WHEN 'blocked' THEN 'blocked by nothing' ELSE 'chain without end' END, n.id, n.type_name, NULL
FROM newest AS n
WHERE n.status = 'blocked' AND NOT EXISTS (SELECT 1 FROM /*schema*/blocker AS b WHERE b.job_id = n.id)
  OR n.chain_index = 0 AND n.chain_ended_at IS NULL AND n.status IN ('completed', 'failed')
    AND NOT EXISTS (
      SELECT 1 FROM /*schema*/job AS j
      WHERE j.chain_id = n.id AND j.chain_index > 0 AND j.status IN ('blocked', 'pending', 'running'))
LIMIT 100
