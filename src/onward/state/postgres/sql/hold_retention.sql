-- Be the one who prunes for a while longer, or from now on if nobody is; how far whoever did came, or how long to wait; and
-- whether there is history that nobody wants any more.
WITH told AS MATERIALIZED (
  SELECT coalesce(:now::timestamptz, statement_timestamp()) AS now
), held AS (
  UPDATE /*schema*/retention r SET
    held_by = :worker::text, held_until = told.now + make_interval(secs => :lease::double precision),
    walks = CASE WHEN r.held_by = :worker::text THEN coalesce(:walks::text, r.walks) ELSE r.walks END
  FROM told
  WHERE r.one IN (SELECT free.one FROM /*schema*/retention free FOR UPDATE SKIP LOCKED)
    AND (r.held_by = :worker::text OR coalesce(r.held_until, told.now) <= told.now
      -- Much later than anybody says: the clock was ahead then.
      OR r.held_until > told.now + make_interval(secs => 2 * :lease::double precision))
  RETURNING r.walks
)
SELECT (SELECT walks FROM held),
  -- Whoever asks at this moment has the row locked.
  greatest(coalesce(extract(epoch FROM /*schema*/readable(r.held_until) - told.now), 1), 0.1)::double precision,
  extract(epoch FROM told.now)::double precision,
  EXISTS (SELECT FROM /*schema*/history_part p WHERE p.kept_until <= told.now)
FROM told LEFT JOIN /*schema*/retention r ON true
