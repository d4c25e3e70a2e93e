-- Settle one attempt whose chain goes on with a job that waits for nothing; this transaction has locked its row.
-- The same as settle.sql does with it; see complete_attempt.sql for why it fails.
WITH settled AS (
  UPDATE /*schema*/job job SET
    status = 'completed',
    output = NULL,
    failure_reason = NULL,
    transients = 0,
    crashes = 0,
    deferred = false,
    leased_by = NULL,
    leased_until = NULL,
    open_blockers = 0,
    ended_at = coalesce(:now::timestamptz, statement_timestamp()),
    completed_by = :holder::text,
    chain_ended_at = NULL
  WHERE job.id = :id::uuid AND job.attempt = :attempt::integer AND job.leased_by = :holder::text
    AND job.ended_at IS NULL
  RETURNING job.id, job.chain_id, job.chain_index, job.root_id, job.ended_at AS at
), continued AS (
  INSERT INTO /*schema*/job (
    id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, limit_key, input, created_at,
    scheduled_at, origin_id, root_id
  )
  SELECT :next_id::uuid, s.chain_id, s.chain_index + 1, :next_type_name::text, :next_version::integer, 'pending',
    :next_rank::integer,
    coalesce(:next_at::timestamptz, s.at + make_interval(secs => :next_delay::double precision)) > s.at,
    :next_limit_key::text, :next_input::json, s.at,
    coalesce(:next_at::timestamptz, s.at + make_interval(secs => :next_delay::double precision)), s.id, s.root_id
  FROM settled s
)
SELECT /*schema*/insist(count(*)) FROM settled
