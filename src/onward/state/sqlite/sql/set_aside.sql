-- A row that cannot be read fails alone, and says why.
UPDATE /*schema*/job SET
  status = 'failed', failure_reason = 'unreadable', errors = :errors, ended_at = :now, leased_by = NULL,
  leased_until = NULL, deferred = 0, open_blockers = 0,
  chain_ended_at = CASE WHEN chain_index = 0 THEN :now END, chain_failed = chain_index = 0
WHERE rowid = :place
