-- A worker's sign of life: its row is brought up to date, or made where there is none, and what died long ago goes.
-- Waits for no row: one that somebody has locked is left to the next sign of life.
WITH time AS (
  SELECT coalesce(:now::timestamptz, statement_timestamp()) AS now
), mine AS (
  SELECT id FROM /*schema*/worker WHERE id = :worker::text FOR NO KEY UPDATE SKIP LOCKED
), seen AS (
  UPDATE /*schema*/worker worker
  SET seen_at = time.now, alive_until = time.now + make_interval(secs => :promise::double precision),
    is_stopping = :is_stopping::boolean,
    blocked_since = time.now - make_interval(secs => :blocked_for::double precision)
  FROM mine, time WHERE worker.id = mine.id
), gone AS (
  SELECT worker.id FROM /*schema*/worker worker, time
  WHERE worker.id <> :worker::text
    AND (worker.alive_until < time.now - make_interval(secs => :kept::double precision)
      OR worker.seen_at > time.now + make_interval(secs => :kept::double precision))
  ORDER BY worker.id
  LIMIT 100
  FOR UPDATE OF worker SKIP LOCKED
), removed AS (
  DELETE FROM /*schema*/worker worker USING gone WHERE worker.id = gone.id
)
INSERT INTO /*schema*/worker
  (id, host, pid, version, onward_version, types, concurrency, started_at, seen_at, alive_until, is_stopping, blocked_since)
SELECT :worker::text, :host::text, :pid::bigint, :version::text, :onward_version::text, :types::json,
  :concurrency::integer, time.now - make_interval(secs => :age::double precision), time.now,
  time.now + make_interval(secs => :promise::double precision), :is_stopping::boolean,
  time.now - make_interval(secs => :blocked_for::double precision)
FROM time
WHERE NOT EXISTS (SELECT FROM /*schema*/worker WHERE id = :worker::text)
ON CONFLICT (id) DO NOTHING
RETURNING id
