-- Less work for the server: what waits for chains that end, and what limits hold, is looked up, whatever else there is.
DROP FUNCTION IF EXISTS /*schema*/chains_ended(uuid[], timestamptz);
DROP FUNCTION IF EXISTS /*schema*/give_up_places(text[], text[]);
DROP FUNCTION IF EXISTS /*schema*/set_limits(text[], integer[], double precision[], integer[], text[], boolean, timestamptz);
DROP FUNCTION IF EXISTS /*schema*/pause_types(text[], timestamptz);

/*include functions/ending*/

/*include functions/limits*/
