-- Less work for the server: what waits for chains that end, and what limits hold, is looked up, whatever else there is.
DROP FUNCTION IF EXISTS /*schema*/chains_ended(uuid[], timestamptz);
DROP FUNCTION IF EXISTS /*schema*/give_up_places(text[], text[]);
DROP FUNCTION IF EXISTS /*schema*/set_limits(text[], integer[], double precision[], integer[], text[], boolean, timestamptz);
DROP FUNCTION IF EXISTS /*schema*/pause_types(text[], timestamptz);

/*include functions/ending*/

/*include functions/limits*/

-- Made ready anew for every statement, it took an eighth of what a start, or the end of a lone attempt, costs the server.
-- All who write a status are in these files; what a hand writes that is none is shown as failed, with what it is.
ALTER TABLE /*schema*/job DROP CONSTRAINT IF EXISTS job_status_check;
