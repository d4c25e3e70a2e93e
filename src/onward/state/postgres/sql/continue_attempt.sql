-- Settle an attempt whose chain goes on with a job that waits for nothing and whose row this transaction has locked,
-- or fail, as complete_attempt.sql. Nobody has wanted it cancelled, so it completes, though not its chain.
WITH settled AS (
  UPDATE /*schema*/job job SET
    /*include fragments/completed*/
  FROM (
    SELECT 'complete' AS kind, NULL::json AS output, :holder::text AS completed_by,
      coalesce(:now::timestamptz, statement_timestamp()) AS at
  ) o
  WHERE job.id = :id::uuid AND coalesce((
    SELECT true FROM /*schema*/job held
    WHERE held.id = :id::uuid AND held.attempt = :attempt::integer AND held.leased_by = :holder::text
      AND held.ended_at IS NULL), /*schema*/insist(NULL))
  RETURNING job.id, job.chain_id, job.chain_index, job.root_id, o.at
)
INSERT INTO /*schema*/job (
  /*include fragments/new_job_columns*/
)
SELECT
  /*include fragments/new_job_values*/
FROM (
  SELECT :next_id::uuid AS id, s.chain_id, s.chain_index + 1 AS chain_index, :next_type_name::text AS type_name,
    :next_version::integer AS payload_version, :next_rank::integer AS rank, :next_limit_key::text AS limit_key,
    :next_input::text AS input, :next_delay::double precision AS delay, :next_at::timestamptz AS scheduled_at,
    s.id AS origin_id, s.root_id, :next_meta::text AS meta, s.at
  FROM settled s
) wanted
