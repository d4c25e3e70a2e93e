-- What failed only through chains that have come back is blocked again.
UPDATE /*schema*/job AS job SET status = 'blocked', failure_reason = NULL, ended_at = NULL, open_blockers = (
    SELECT count(*) FROM /*schema*/blocker blocker JOIN /*schema*/job header ON header.id = blocker.blocked_by_chain_id
    WHERE blocker.job_id = job.id AND header.chain_ended_at IS NULL
  )
WHERE job.status = 'failed' AND job.failure_reason = 'blocker'
  AND job.id IN (
    SELECT blocker.job_id FROM /*schema*/blocker blocker
    WHERE blocker.blocked_by_chain_id IN (SELECT value FROM json_each(:chain_ids))
  )
  AND NOT EXISTS (
    SELECT 1 FROM /*schema*/blocker blocker JOIN /*schema*/job header ON header.id = blocker.blocked_by_chain_id
    WHERE blocker.job_id = job.id AND header.chain_failed = 1
  )
RETURNING id, chain_id, type_name
