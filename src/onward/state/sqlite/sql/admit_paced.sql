-- Up to when the slots of a key's rate are given out, and when the next one is wanted.
INSERT INTO /*schema*/limit_key (key, tat, wake_at, stale_at) VALUES (:key, :tat, :wake_at, :stale_at)
ON CONFLICT (key) DO UPDATE SET tat = excluded.tat, wake_at = excluded.wake_at, stale_at = excluded.stale_at
