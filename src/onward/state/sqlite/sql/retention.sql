-- Whether it is this worker that prunes for an app, and until when; a hand may have written anything there.
SELECT held_by IS :worker, CASE WHEN typeof(held_until) = 'integer' THEN held_until ELSE 0 END FROM /*schema*/retention
WHERE whose = :whose
