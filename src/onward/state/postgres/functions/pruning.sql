-- Delete chains of these types that ended so many seconds ago, of each type its own (NULL: never), but none that
-- something unfinished waits for: those with ids from `place` on, up to `before`. At most so many chains, and together
-- about so many rows, unless one alone has more; ten times as many are read. Never waits for who has one locked. Those that
-- `keep_history` says how long to keep elsewhere are moved to the history (NULL: none); `moved` says how many.
CREATE FUNCTION /*schema*/prune(
  type_names text[], keep_completed double precision[], keep_failed double precision[], place uuid,
  before double precision, most_chains integer, most_rows integer, at timestamptz,
  keep_history double precision[] DEFAULT NULL)
RETURNS TABLE (completed integer, failed integer, jobs integer, reached uuid, is_end boolean, problem text,
  moved integer)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '20ms' AS $$
#variable_conflict use_column
DECLARE
  last      uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
  following uuid;
  one       record;
  doomed    uuid[] := '{}';
  long      uuid[] := '{}';
  rows      bigint := 0;
  read      integer := 0;
  locked    record;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RETURN QUERY SELECT 0, 0, 0, place, true, 'isolation', 0;
    RETURN;
  END IF;
  completed := 0;
  failed := 0;
  jobs := 0;
  moved := 0;
  IF before IS NOT NULL THEN  -- the first UUIDv7 of that time
    last := rpad(lpad(to_hex(greatest(0, (extract(epoch FROM at) - before) * 1000)::bigint), 12, '0'), 32, '0')::uuid;
  END IF;
  FOR one IN
    SELECT j.id, j.is_over, CASE WHEN j.is_over THEN
      (SELECT count(*) + coalesce(sum(later.blockers), 0) FROM (
        SELECT l.blockers FROM /*schema*/job l WHERE l.chain_id = j.id AND l.chain_index > 0 LIMIT most_rows) later)
    END AS later, 1 + j.blockers + CASE WHEN j.is_over AND j.has_dependents THEN
      (SELECT count(*) FROM (
        SELECT FROM /*schema*/blocker b WHERE b.blocked_by_chain_id = j.id LIMIT most_rows) waiting)
    ELSE 0 END AS rows
    FROM (
      SELECT j.id, j.blockers, j.has_dependents, coalesce(
        /*include fragments/has_outlived*/, false) AS is_over
      FROM /*schema*/job j WHERE j.id >= place AND j.id <= last ORDER BY j.id LIMIT most_rows * 10 + 1
    ) j
  LOOP
    following := CASE WHEN read = most_rows * 10 OR (one.is_over AND (
      cardinality(doomed) + cardinality(long) = most_chains OR (rows > 0 AND rows + one.rows + one.later > most_rows))) THEN one.id END;
    EXIT WHEN following IS NOT NULL;
    read := read + 1;
    CONTINUE WHEN NOT one.is_over;
    rows := rows + one.rows + one.later;
    IF one.later > 0 THEN
      long := array_append(long, one.id);
    ELSE
      doomed := array_append(doomed, one.id);
    END IF;
  END LOOP;
  reached := coalesce(following, last);
  is_end := following IS NULL;
  IF rows = 0 THEN
    RETURN NEXT;
    RETURN;
  END IF;

  BEGIN
    -- The order of locks is everybody's, though who waits for nothing could do without.
    IF cardinality(long) > 0 THEN
      doomed := doomed || ARRAY(
        SELECT j.chain_id FROM /*schema*/job j
        WHERE j.id = ANY(ARRAY(SELECT c.job_id FROM /*schema*/current_jobs(long) c))
        ORDER BY j.id FOR UPDATE SKIP LOCKED);
    END IF;
    SELECT array_agg(h.id) AS ids, bool_or(h.has_dependents) AS have_dependents INTO locked FROM (
      SELECT j.id, j.has_dependents FROM /*schema*/job j
      WHERE j.id = ANY(doomed) AND /*include fragments/has_outlived*/
      ORDER BY j.id FOR UPDATE SKIP LOCKED) h;
    doomed := locked.ids;
    IF locked.have_dependents THEN
      -- From here on nobody comes to wait for them: a start that names one waits for its lock, and finds nothing.
      doomed := ARRAY(
        SELECT d FROM unnest(doomed) d WHERE NOT EXISTS (
          SELECT FROM /*schema*/blocker b JOIN /*schema*/job w ON w.id = b.job_id
          WHERE b.blocked_by_chain_id = d AND w.status NOT IN ('completed', 'failed')));
      DELETE FROM /*schema*/blocker b WHERE b.blocked_by_chain_id = ANY(doomed);
    END IF;

    IF keep_history IS NOT NULL THEN
      moved := /*schema*/move_to_history(doomed, type_names, keep_history, at);
    END IF;
    DELETE FROM /*schema*/blocker b WHERE b.job_id = ANY(ARRAY(
      SELECT j.id FROM /*schema*/job j WHERE j.id = ANY(doomed) AND j.blockers > 0
      UNION ALL
      SELECT j.id FROM /*schema*/job j WHERE j.chain_id = ANY(doomed) AND j.chain_index > 0 AND j.blockers > 0));
    DELETE FROM /*schema*/job j WHERE j.chain_id = ANY(doomed) AND j.chain_index > 0;
    GET DIAGNOSTICS jobs = ROW_COUNT;
    WITH gone AS (DELETE FROM /*schema*/job j WHERE j.id = ANY(doomed) RETURNING j.chain_failed)
      SELECT count(*) FILTER (WHERE NOT gone.chain_failed), count(*) FILTER (WHERE gone.chain_failed)
      INTO completed, failed FROM gone;
    jobs := jobs + completed + failed;
  EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    -- Somebody deletes what waited for one of these, or what one of these waited for: they are left to a later walk.
    completed := 0;
    failed := 0;
    jobs := 0;
    moved := 0;
  END;
  RETURN NEXT;
END $$;
