-- Settle an attempt that completes a chain of one job and whose row this transaction has locked, or fail.
SELECT /*schema*/complete_attempt(
  :id::uuid, :attempt::integer, :holder::text, :output::json, coalesce(:now::timestamptz, statement_timestamp()))
