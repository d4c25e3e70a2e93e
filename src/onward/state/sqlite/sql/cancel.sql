-- Cancel chains: a waiting job fails at once; a running one is asked to stop, and an outcome that commits first wins.
UPDATE /*schema*/job SET
  status = CASE status WHEN 'running' THEN 'running' ELSE 'failed' END,
  failure_reason = CASE status WHEN 'running' THEN NULL ELSE 'cancelled' END,
  ended_at = CASE status WHEN 'running' THEN NULL ELSE :now END,
  cancel_requested_at = :now,
  deferred = 0,
  chain_ended_at = CASE WHEN status <> 'running' AND chain_index = 0 THEN :now END,
  chain_failed = status <> 'running' AND chain_index = 0
WHERE id IN (
    /*include fragments/jobs_of*/
  )
  AND status IN ('blocked', 'pending', 'running')
RETURNING id, chain_id, chain_index, type_name, status, has_dependents IS NOT 0
