-- The database's time, in microseconds since 1970, and how far the figures have come; a hand may have written anything there.
SELECT :now, iif(typeof(next_at) = 'integer', next_at, 0), CAST(counted_to AS BLOB), iif(typeof(loose_from) = 'integer', loose_from, 0)
FROM /*schema*/figure_turn
