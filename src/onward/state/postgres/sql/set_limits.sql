-- Set the rules of limits; what became of each.
SELECT name, outcome
FROM /*schema*/set_limits(
  :names::text[], :places::integer[], :everys::double precision[], :bursts::integer[], :figures::text[], :declared::boolean,
  coalesce(:now::timestamptz, statement_timestamp()))
