-- Settle one attempt that completes a chain of one job, whose row this transaction has locked; see settle_completed.sql.
-- It fails where that would return no row: the commit that follows at once must not go through then.
WITH settled AS (
  UPDATE /*schema*/job job SET
    status = 'completed',
    output = :output::json,
    failure_reason = NULL,
    transients = 0,
    crashes = 0,
    deferred = false,
    leased_by = NULL,
    leased_until = NULL,
    open_blockers = 0,
    ended_at = coalesce(:now::timestamptz, statement_timestamp()),
    completed_by = :holder::text,
    chain_ended_at = coalesce(:now::timestamptz, statement_timestamp())
  WHERE job.id = :id::uuid AND job.attempt = :attempt::integer AND job.leased_by = :holder::text
    AND job.ended_at IS NULL AND job.chain_index = 0 AND NOT job.has_dependents
  RETURNING 1
)
SELECT /*schema*/insist(count(*)) FROM settled
