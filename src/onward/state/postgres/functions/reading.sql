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
  SELECT CASE WHEN /*schema*/readable(job.created_at) <> job.created_at
      OR /*schema*/readable(job.scheduled_at) <> job.scheduled_at
      OR /*schema*/readable(job.leased_until) <> job.leased_until
      OR /*schema*/readable(job.ended_at) <> job.ended_at
    THEN concat_ws('; ',
      'created_at holds ' || nullif(job.created_at, /*schema*/readable(job.created_at)),
      'scheduled_at holds ' || nullif(job.scheduled_at, /*schema*/readable(job.scheduled_at)),
      'leased_until holds ' || nullif(job.leased_until, /*schema*/readable(job.leased_until)),
      'ended_at holds ' || nullif(job.ended_at, /*schema*/readable(job.ended_at))) END
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
