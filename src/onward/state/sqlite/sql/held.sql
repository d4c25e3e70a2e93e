-- What a worker holds, for a closer look at it: where each row is, what `take` returns of it, and who waits for its chain.
SELECT rowid, id, chain_id, chain_index, type_name, payload_version, input, attempt, failures, transients, crashes, rank,
  root_id, errors, blockers, scheduled_at, created_at, has_dependents
FROM /*schema*/job
WHERE status = 'running' AND leased_by = :worker
