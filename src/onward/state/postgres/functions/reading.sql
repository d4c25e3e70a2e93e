-- A time as every driver can read it: infinities, the years before 1 and those after 9999 become the nearest it can.
CREATE FUNCTION /*schema*/readable(moment timestamptz) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN moment < timestamptz '0001-01-03 00:00:00+00' THEN timestamptz '0001-01-03 00:00:00+00'
    WHEN moment > timestamptz '9999-12-29 00:00:00+00' THEN timestamptz '9999-12-29 00:00:00+00'
    ELSE moment END
$$;

-- What of a job is not shown as it is stored, or NULL.
CREATE FUNCTION /*schema*/problem(job /*schema*/job) RETURNS text
LANGUAGE sql STABLE AS $$
  /*include fragments/problem*/
$$;

-- The type of the last of a job's errors, or NULL where they cannot be read: one such row must not stop a listing.
CREATE FUNCTION /*schema*/last_error_type(errors json) RETURNS text
LANGUAGE plpgsql /*calls nothing*/ IMMUTABLE AS $$
BEGIN
  RETURN errors -> -1 ->> 'type';
EXCEPTION
  WHEN data_exception THEN
    RETURN NULL;
END $$;
