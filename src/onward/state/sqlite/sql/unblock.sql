-- Chains have ended: count them down where they are waited for. The last one unblocks; a failed one fails the job.
-- Text comes as bytes: what waits may hold any, and must not keep what it waits for from ending.
WITH edge AS MATERIALIZED (
  SELECT blocker.job_id, count(*) AS ended, max(header.chain_failed) AS failed
  FROM json_each(:chain_ids) asked
    CROSS JOIN /*schema*/blocker blocker ON blocker.blocked_by_chain_id = asked.value
    CROSS JOIN /*schema*/job header ON header.id = blocker.blocked_by_chain_id
  GROUP BY blocker.job_id
), verdict AS MATERIALIZED (
  SELECT waiting.id, edge.ended, edge.failed AND NOT waiting.runs_anyway AS fails
  FROM edge CROSS JOIN /*schema*/job waiting ON waiting.id = edge.job_id
  WHERE waiting.status = 'blocked'
)
UPDATE /*schema*/job AS job SET
  open_blockers = job.open_blockers - v.ended,
  status = CASE WHEN v.fails THEN 'failed' WHEN job.open_blockers <= v.ended THEN 'pending' ELSE 'blocked' END,
  scheduled_at = max(job.scheduled_at, :now),
  deferred = NOT v.fails AND job.scheduled_at > :now,
  failure_reason = CASE WHEN v.fails THEN 'blocker' END,
  ended_at = CASE WHEN v.fails THEN :now END,
  chain_ended_at = CASE WHEN v.fails AND job.chain_index = 0 THEN :now END,
  chain_failed = v.fails AND job.chain_index = 0
FROM verdict AS v
WHERE job.id = v.id
RETURNING CAST(id AS BLOB), CAST(chain_id AS BLOB), CAST(chain_index AS INTEGER), CAST(type_name AS BLOB), status,
  deferred, has_dependents IS NOT 0
