-- Settle an attempt whose chain goes on with a job that waits for nothing and whose row this transaction has locked,
-- or fail.
SELECT /*schema*/continue_attempt(
  :id::uuid, :attempt::integer, :holder::text, :next_id::uuid, :next_type_name::text, :next_version::integer,
  :next_rank::integer, :next_limit_key::text, :next_input::json, :next_at::timestamptz,
  :next_delay::double precision, coalesce(:now::timestamptz, statement_timestamp()))
