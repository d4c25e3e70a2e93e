-- Be the one who prunes for an app for a while longer, or from now on if nobody is; how far whoever did came, or how long
-- to wait; and whether there is history that nobody wants any more.
WITH told AS MATERIALIZED (
  SELECT coalesce(:now::timestamptz, statement_timestamp()) AS now
), first AS (
  INSERT INTO /*schema*/retention (whose, held_by, held_until, walks)
    SELECT :whose::text, :worker::text, told.now + make_interval(secs => :lease::double precision), '{}' FROM told
    WHERE NOT EXISTS (SELECT FROM /*schema*/retention r WHERE r.whose = :whose::text)
    ON CONFLICT DO NOTHING
  RETURNING walks
), held AS (
  UPDATE /*schema*/retention r SET
    held_by = :worker::text, held_until = told.now + make_interval(secs => :lease::double precision),
    walks = CASE WHEN r.held_by = :worker::text THEN coalesce(:walks::text, r.walks) ELSE r.walks END
  FROM told
  WHERE r.whose IN (SELECT free.whose FROM /*schema*/retention free WHERE free.whose = :whose::text FOR UPDATE SKIP LOCKED)
    AND (r.held_by = :worker::text OR coalesce(r.held_until, told.now) <= told.now
      -- Much later than anybody says: the clock was ahead then.
      OR r.held_until > told.now + make_interval(secs => 2 * :lease::double precision))
  RETURNING r.walks
)
SELECT coalesce((SELECT walks FROM held), (SELECT walks FROM first)),
  -- Whoever asks at this moment has the row locked.
  greatest(coalesce(extract(epoch FROM /*schema*/readable(r.held_until) - told.now), 1), 0.1)::double precision,
  extract(epoch FROM told.now)::double precision,
  EXISTS (SELECT FROM /*schema*/history_part p WHERE p.kept_until <= told.now)
FROM told LEFT JOIN /*schema*/retention r ON r.whose = :whose::text
