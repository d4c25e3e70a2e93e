-- Jobs that run anyway may still wait while a chain of theirs has failed: it is one more to wait for again.
-- Counted anew, not up: a job retried in the same call has counted it already.
UPDATE /*schema*/job AS job SET open_blockers = (
    SELECT count(*) FROM /*schema*/blocker blocker JOIN /*schema*/job header ON header.id = blocker.blocked_by_chain_id
    WHERE blocker.job_id = job.id AND header.chain_ended_at IS NULL
  )
WHERE status = 'blocked'
  AND id IN (
    SELECT blocker.job_id FROM /*schema*/blocker blocker
    WHERE blocker.blocked_by_chain_id IN (SELECT value FROM json_each(:chain_ids))
  )
