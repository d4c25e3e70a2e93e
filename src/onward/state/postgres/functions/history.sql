-- What of a job in the history is not shown as it is stored, or NULL.
CREATE FUNCTION /*schema*/history_problem(job /*schema*/history) RETURNS text
LANGUAGE sql STABLE AS $$
  /*include fragments/problem*/
$$;

-- How the name of the part of the history ends that begins at this time.
CREATE FUNCTION /*schema*/history_month(starts_at timestamptz) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  RETURN to_char(starts_at AT TIME ZONE 'UTC', 'YYYY_MM');
END $$;

-- Whether the history has that part.
CREATE FUNCTION /*schema*/has_history_part(starts_at timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN EXISTS (
    SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = '/*schema*/history'::regclass AND c.relname = 'history_' || /*schema*/history_month(starts_at));
END $$;

-- Make the parts of the history that are written down in history_part and are not there.
--
-- This and drop_history_parts do with the rights of the owner of the tables what no other role need have the rights to. They
-- are told nothing by who calls them: what they do was written down, by somebody who may.
CREATE FUNCTION /*schema*/make_history_parts() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  starts_at timestamptz;
  part      text;
BEGIN
  -- One at a time. It keeps nobody from reading, or from writing to other parts.
  LOCK TABLE ONLY /*schema*/history IN SHARE UPDATE EXCLUSIVE MODE;
  FOR starts_at IN
    SELECT p.starts_at FROM /*schema*/history_part p
    -- What else a hand has written there keeps nobody from the others.
    WHERE NOT p.is_over AND p.starts_at BETWEEN timestamptz '0001-01-01 00:00:00+00' AND timestamptz '9999-01-01 00:00:00+00'
      AND p.starts_at = date_trunc('month', p.starts_at, 'UTC')
    ORDER BY p.starts_at
  LOOP
    CONTINUE WHEN /*schema*/has_history_part(starts_at);
    part := '/*schema*/history_' || /*schema*/history_month(starts_at);
    -- Made first and attached then: to be made as a part it would need a lock that keeps everybody from the history.
    EXECUTE 'CREATE TABLE IF NOT EXISTS ' || part || ' (LIKE /*schema*/history)';
    EXECUTE format(
      'ALTER TABLE /*schema*/history ATTACH PARTITION %s FOR VALUES FROM (%L) TO (%L)', part,
      to_char(starts_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || '+00',
      to_char(starts_at AT TIME ZONE 'UTC' + interval '1 month', 'YYYY-MM-DD HH24:MI:SS') || '+00');
  END LOOP;
END $$;

-- Drop the parts of the history of which it is written down in history_part that they are over. What was detached is not one.
CREATE FUNCTION /*schema*/drop_history_parts() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  over timestamptz;
BEGIN
  FOR over IN SELECT p.starts_at FROM /*schema*/history_part p WHERE p.is_over ORDER BY p.starts_at LOOP
    IF /*schema*/has_history_part(over) THEN
      EXECUTE 'DROP TABLE /*schema*/history_' || /*schema*/history_month(over);
    END IF;
    DELETE FROM /*schema*/history_part p WHERE p.starts_at = over;
  END LOOP;
END $$;

-- Drop the oldest part of the history that nobody wants any more; when it began, or NULL: there is none, or somebody uses it.
-- For that long, a moment, nobody can read the history: so it does not wait for those who do.
CREATE FUNCTION /*schema*/drop_history(at timestamptz) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' AS $$
DECLARE
  over timestamptz;
BEGIN
  SELECT p.starts_at INTO over FROM /*schema*/history_part p WHERE p.kept_until <= at
    ORDER BY p.starts_at LIMIT 1 FOR UPDATE SKIP LOCKED;
  IF over IS NOT NULL THEN
    UPDATE /*schema*/history_part p SET is_over = true WHERE p.starts_at = over;
    PERFORM /*schema*/drop_history_parts();
  END IF;
  RETURN over;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
  RETURN NULL;
END $$;
