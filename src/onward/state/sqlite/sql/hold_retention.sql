-- Be the one who prunes for an app for a while longer, or from now on if nobody is.
INSERT INTO /*schema*/retention AS held (whose, held_by, held_until, walks) VALUES (:whose, :worker, :until, '{}')
ON CONFLICT (whose) DO UPDATE SET
  held_by = :worker, held_until = :until, walks = CASE WHEN held.held_by = :worker THEN coalesce(:walks, held.walks) ELSE held.walks END
WHERE held.held_by = :worker OR held.held_until <= :now OR typeof(held.held_until) <> 'integer'
  OR held.held_until > :until + (:until - :now)  -- much later than anybody says: the clock was ahead then
RETURNING CAST(walks AS BLOB)
