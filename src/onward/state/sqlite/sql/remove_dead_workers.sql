-- What died long ago goes; so does what was seen in a future that a wrong clock has made up.
DELETE FROM /*schema*/worker
WHERE id <> :worker AND (seen_at > :now + CAST(:kept * 1000000 AS INTEGER)
  OR max(alive_until, seen_at) < :now - CAST(:kept * 1000000 AS INTEGER))
