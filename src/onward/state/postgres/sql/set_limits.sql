-- Set the rules of limits; what became of each.
SELECT name, outcome
-- Not long behind somebody's lock, also where no setting of a session holds: nobody is let in meanwhile.
FROM (SELECT /*include fragments/impatience*/ AS patience) first
  CROSS JOIN LATERAL /*schema*/set_limits(
  CASE WHEN first.patience <> '' THEN :names::text[] END, :places::integer[], :everys::double precision[], :bursts::integer[],
  :figures::text[], :declared::boolean, coalesce(:now::timestamptz, statement_timestamp()))
