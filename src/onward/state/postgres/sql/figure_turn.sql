-- The database's time, in microseconds since 1970, and how far the figures have come.
SELECT (extract(epoch FROM coalesce(:now::timestamptz, statement_timestamp())) * 1000000)::bigint,
  next_at, counted_to, loose_from
FROM /*schema*/figure_turn
