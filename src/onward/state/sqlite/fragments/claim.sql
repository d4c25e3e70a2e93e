UPDATE /*schema*/job AS job SET
  status = 'running',
  attempt = job.attempt + 1,
  ended_at = NULL,
  leased_by = :worker,
  leased_until = coalesce(:now, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) + best.lease
