-- Set the rules of limits; what became of each.
SELECT name, outcome
FROM /*schema*/set_limits(
  :names::text[], :places::integer[], :everys::double precision[], :bursts::integer[], :declared::text[],
  coalesce(:now::timestamptz, statement_timestamp()))
