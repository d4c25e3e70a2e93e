-- Take from jobs of limits, of types, or of types and versions ('type/1'), the places of those that have not started: they
-- are held again. `deferred` stays, and is named so that the trigger hears of it.
CREATE FUNCTION /*schema*/give_up_places(names text[], type_names text[], unserved text[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  beginners uuid[];
BEGIN
  WITH waiting AS MATERIALIZED (
    SELECT j.id FROM /*schema*/job j
    WHERE j.limit_key IS NOT NULL
      AND (j.status = 'running' OR j.status = 'pending' AND NOT j.deferred AND j.admitted_after = j.attempt)
      AND j.status = 'pending'
      AND (split_part(j.limit_key, '/', 1) = ANY(names) OR j.type_name = ANY(type_names)
        OR j.type_name || '/' || j.payload_version = ANY(unserved))
    FOR NO KEY UPDATE SKIP LOCKED
  )
  UPDATE /*schema*/job j SET admitted_after = NULL, deferred = j.deferred FROM waiting WHERE j.id = waiting.id;
  -- Those of several limits that wait for the next begin anew. Locked first: who admits beside us may have given them a
  -- place that only a new statement sees. By an array: the planner might read the whole table for a join.
  beginners := ARRAY(
    SELECT j.id FROM /*schema*/job j
    WHERE j.status = 'pending' AND j.id = ANY(ARRAY(
      SELECT p.job_id FROM /*schema*/limit_place p
      WHERE split_part(p.key, '/', 1) = ANY(names)
        OR (SELECT x.type_name = ANY(type_names) OR x.type_name || '/' || x.payload_version = ANY(unserved)
            FROM /*schema*/job x WHERE x.id = p.job_id)))
    FOR NO KEY UPDATE SKIP LOCKED);
  IF cardinality(beginners) = 0 THEN
    RETURN;
  END IF;
  WITH gone AS (
    DELETE FROM /*schema*/limit_place p WHERE p.job_id = ANY(beginners)
  ), woken AS (
    INSERT INTO /*schema*/limit_wake (key) SELECT unnest(j.limit_keys) FROM /*schema*/job j WHERE j.id = ANY(beginners)
  )
  UPDATE /*schema*/job j SET admitted_after = NULL, deferred = j.deferred, limit_key = j.limit_keys[1] WHERE j.id = ANY(beginners);
END $$;

-- Set the rules of limits (`figures`: the same as text). What code declares counts only when it is new: neither what it said
-- all along, after a change at run time, nor what it said before the last change, as old workers do that start again
-- while new ones come. Says what became of each.
CREATE FUNCTION /*schema*/set_limits(
  names text[], places integer[], everys double precision[], bursts integer[], figures text[],
  is_declared boolean, at timestamptz)
RETURNS TABLE (name text, outcome text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  wanted  record;
  stored  record;
  changed text[] := '{}';
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RETURN QUERY SELECT NULL::text, 'isolation';
    RETURN;
  END IF;
  -- What most workers say when they start: nobody who admits has to wait for that.
  IF is_declared AND NOT EXISTS (
      SELECT FROM unnest(names, figures) w(name, figures) LEFT JOIN /*schema*/limit_rule r ON r.name = w.name
      WHERE r.declared IS DISTINCT FROM w.figures) THEN
    RETURN QUERY SELECT w.name, 'kept' FROM unnest(names) w(name);
    RETURN;
  END IF;
  PERFORM pg_advisory_xact_lock(/*schema*/limit_lock());
  FOR wanted IN
    SELECT * FROM unnest(names, places, everys, bursts, figures) w(name, places, every, burst, figures) ORDER BY w.name
  LOOP
    SELECT * INTO stored FROM /*schema*/limit_rule r WHERE r.name = wanted.name FOR NO KEY UPDATE;
    name := wanted.name;
    outcome := CASE
      WHEN NOT is_declared THEN CASE WHEN stored IS NULL THEN 'unknown' ELSE 'changed' END
      WHEN stored.declared = wanted.figures THEN 'kept'
      WHEN stored.previous = wanted.figures AND stored.declared_at > at - interval '10 minutes' THEN 'outdated'
      ELSE 'changed' END;
    RETURN NEXT;
    CONTINUE WHEN outcome <> 'changed';
    INSERT INTO /*schema*/limit_rule (name, places, every, burst, declared, declared_at)
      VALUES (wanted.name, wanted.places, wanted.every, wanted.burst, wanted.figures, at)
      ON CONFLICT ON CONSTRAINT limit_rule_pkey DO UPDATE SET places = wanted.places, every = wanted.every, burst = wanted.burst,
        declared = CASE WHEN is_declared THEN wanted.figures ELSE stored.declared END,
        previous = CASE WHEN is_declared THEN stored.declared ELSE stored.previous END,
        declared_at = CASE WHEN is_declared THEN at ELSE stored.declared_at END,
        changed_at = CASE WHEN NOT is_declared AND wanted.figures <> stored.declared THEN at END;
    changed := array_append(changed, wanted.name);
  END LOOP;
  IF cardinality(changed) > 0 THEN
    -- Slots were given out at another rate: the new one begins after its burst.
    UPDATE /*schema*/limit_key k SET wake_at = NULL, tat = CASE WHEN r.every IS NOT NULL
        THEN least(k.tat, at + make_interval(secs => r.every * r.burst)) END
      FROM /*schema*/limit_rule r WHERE r.name = k.name AND k.name = ANY(changed) AND k.tat IS NOT NULL;
    PERFORM /*schema*/give_up_places(changed, '{}');
    INSERT INTO /*schema*/limit_wake (key, is_range, until)
      SELECT c || '/', true, c || '0' FROM unnest(changed) c;  -- '0' comes after '/'
  END IF;
END $$;

-- Workers leave these types alone until they are resumed; what others of a limit could have is given up.
CREATE FUNCTION /*schema*/pause_types(type_names text[], at timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  INSERT INTO /*schema*/paused_type (type_name, paused_at)
    SELECT asked.name, at FROM unnest(type_names) AS asked(name)
    ON CONFLICT (type_name) DO NOTHING;
  PERFORM /*schema*/give_up_places('{}', type_names);
END $$;
