-- Types that nobody serves give the places of limits up that others could have.

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

/*include functions/admitting*/
