SELECT id, rank, scheduled_at FROM /*schema*/job
WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
