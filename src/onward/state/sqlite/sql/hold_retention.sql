-- Be the one who prunes for a while longer, or from now on if nobody is.
UPDATE /*schema*/retention SET
  held_by = :worker, held_until = :until, walks = CASE WHEN held_by = :worker THEN coalesce(:walks, walks) ELSE walks END
WHERE held_by = :worker OR held_until <= :now OR typeof(held_until) <> 'integer'
  OR held_until > :until + (:until - :now)  -- much later than anybody says: the clock was ahead then
RETURNING CAST(walks AS BLOB)
