-- Be the one who looks after the figures this time, if nobody else was since it was read that somebody should.
UPDATE /*schema*/figure_turn SET next_at = :next_at WHERE next_at = :seen OR typeof(next_at) <> 'integer'
RETURNING 1
