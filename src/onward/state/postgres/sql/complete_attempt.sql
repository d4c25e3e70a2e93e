-- Settle an attempt that completes a chain of one job and whose row this transaction has locked, or fail.
-- It is looked once, before anything is updated, also when the row is gone: that costs less than to look afterwards.
-- `insist`, which costs as much as the look, is only asked to fail.
UPDATE /*schema*/job job SET
  /*include fragments/completed*/,
  chain_ended_at = o.at
FROM (
  SELECT 'complete' AS kind, :output::json AS output, :holder::text AS completed_by,
    coalesce(:now::timestamptz, statement_timestamp()) AS at
) o
WHERE job.id = :id::uuid AND coalesce((
  SELECT true FROM /*schema*/job held
  WHERE held.id = :id::uuid AND held.attempt = :attempt::integer AND held.leased_by = :holder::text
    AND held.ended_at IS NULL AND held.chain_index = 0 AND NOT held.has_dependents), /*schema*/insist(NULL))
