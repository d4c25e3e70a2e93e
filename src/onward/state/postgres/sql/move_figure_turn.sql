-- Starts are counted up to here; whether nobody else has counted meanwhile.
UPDATE /*schema*/figure_turn SET counted_to = :counted_to::text WHERE counted_to = :seen::text
RETURNING 1
