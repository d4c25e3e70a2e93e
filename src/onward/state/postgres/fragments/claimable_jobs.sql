SELECT id, rank, scheduled_at FROM /*schema*/job
WHERE status = 'pending' AND NOT deferred
