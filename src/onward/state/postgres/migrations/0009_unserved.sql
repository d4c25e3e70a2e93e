-- Types that nobody serves give the places of limits up that others could have. And less work for the server: what waits for
-- chains that end, and what limits hold, is looked up, whatever else there is.

-- What had a place when somebody looked, and none of the workers that lived then took.
CREATE TABLE /*schema*/unserved_type (
  type_name       text COLLATE "C" NOT NULL,
  payload_version integer NOT NULL,
  PRIMARY KEY (type_name, payload_version)
);

DROP FUNCTION IF EXISTS /*schema*/woken_keys(integer, bigint, boolean, timestamptz);
DROP FUNCTION IF EXISTS /*schema*/admit(integer, bigint, boolean, timestamptz);
DROP FUNCTION IF EXISTS /*schema*/give_up_places(text[], text[]);
DROP FUNCTION IF EXISTS /*schema*/set_limits(text[], integer[], double precision[], integer[], text[], boolean, timestamptz);
DROP FUNCTION IF EXISTS /*schema*/pause_types(text[], timestamptz);

/*include functions/limits*/

-- Made ready anew for every statement, it took an eighth of what a start, or the end of a lone attempt, costs the server.
-- All who write a status are in these files; what a hand writes that is none is shown as failed, with what it is.
ALTER TABLE /*schema*/job DROP CONSTRAINT IF EXISTS job_status_check;
