-- Whoever prunes is told how many chains were moved to the history.

-- What older workers call is the same, but for a last argument that they may not give, and a last column that they do not read.
DROP FUNCTION IF EXISTS /*schema*/prune(
  text[], double precision[], double precision[], uuid, double precision, integer, integer, timestamptz);
DROP FUNCTION IF EXISTS /*schema*/prune(
  text[], double precision[], double precision[], uuid, double precision, integer, integer, timestamptz, double precision[]);
DROP FUNCTION IF EXISTS /*schema*/move_to_history(uuid[], text[], double precision[], timestamptz);

/*include functions/moving*/

/*include functions/pruning*/
