-- A worker's sign of life: its row is made, or brought up to date.
INSERT INTO /*schema*/worker
  (id, host, pid, version, onward_version, types, concurrency, started_at, seen_at, alive_until, is_stopping, blocked_since)
VALUES (:worker, :host, :pid, :version, :onward_version, :types, :concurrency,
  :now - CAST(:age * 1000000 AS INTEGER), :now, :now + CAST(:promise * 1000000 AS INTEGER), :is_stopping,
  :now - CAST(:blocked_for * 1000000 AS INTEGER))
ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, alive_until = excluded.alive_until,
  is_stopping = excluded.is_stopping, blocked_since = excluded.blocked_since
