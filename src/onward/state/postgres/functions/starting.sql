-- The items of a start as rows.
CREATE FUNCTION /*schema*/start_items(items json)
RETURNS TABLE (
  item integer, parent integer, id uuid, chain_id uuid, chain_index integer, type_name text, payload_version integer,
  rank integer, limit_key text, input json, delay double precision, scheduled_at timestamptz, origin_id uuid,
  root_id uuid, blockers uuid[], runs_anyway boolean, deduplication_key text, deduplication_scope text,
  deduplication_window double precision, deduplication_exclude uuid[], meta text
)
LANGUAGE sql STABLE AS $$
  -- The input travels as text: as a JSON value, null would become no value at all.
  SELECT x.item, x.parent, x.id, x.chain_id, x.chain_index, x.type_name, x.payload_version, x.rank, x.limit_key,
         x.input::json, x.delay, x.scheduled_at, x.origin_id, x.root_id, x.blockers, x.runs_anyway, x.deduplication_key,
         x.deduplication_scope, x.deduplication_window, x.deduplication_exclude, x.meta
  FROM json_to_recordset(items) AS x (
    item integer, parent integer, id uuid, chain_id uuid, chain_index integer, type_name text, payload_version integer,
    rank integer, limit_key text, input text, delay double precision, scheduled_at timestamptz, origin_id uuid,
    root_id uuid, blockers uuid[], runs_anyway boolean, deduplication_key text, deduplication_scope text,
    deduplication_window double precision, deduplication_exclude uuid[], meta text)
$$;

-- Start jobs that need a look first: a deduplication key, blockers, or an id chosen by the caller.
-- Items come parents first, each followed by the blockers it starts (`parent` is the parent's position, from 0).
-- A refusal is a row with a problem, never an error: the caller's transaction stays usable.
CREATE FUNCTION /*schema*/start(items json, at timestamptz)
RETURNS TABLE (item integer, id uuid, duplicate boolean, status text, problem text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  wanted   record;
  winner   uuid;
  skipped  boolean[] := '{}';
  -- Chains of this call that are duplicates, and what they duplicate.
  planned  uuid[] := '{}';
  actual   uuid[] := '{}';
  waiting  boolean := false;
  edges    uuid[];
  missing  uuid[];
  ending   record;
  final    text;
BEGIN
  IF EXISTS (SELECT FROM json_array_elements(items) x WHERE x->>'deduplication_key' IS NOT NULL) THEN
    IF current_setting('transaction_isolation') = 'repeatable read' THEN
      RETURN QUERY SELECT 0, NULL::uuid, false, NULL::text, 'isolation';
      RETURN;
    END IF;
    -- The second of two racing starts waits here until the first has ended.
    PERFORM /*schema*/lock_keys(array_agg(x->>'type_name'), array_agg(x->>'deduplication_key'))
      FROM json_array_elements(items) x WHERE x->>'deduplication_key' IS NOT NULL;
  END IF;

  FOR wanted IN SELECT i.*, at FROM /*schema*/start_items(items) i ORDER BY i.item LOOP
    IF wanted.parent IS NOT NULL AND skipped[wanted.parent + 1] THEN
      skipped[wanted.item + 1] := true;
      CONTINUE;
    END IF;
    winner := NULL;
    IF wanted.deduplication_key IS NOT NULL THEN
      SELECT j.id INTO winner FROM /*schema*/job j
      WHERE j.deduplication_key = wanted.deduplication_key AND j.type_name = wanted.type_name AND j.chain_index = 0
        AND (wanted.deduplication_scope = 'any' OR j.chain_ended_at IS NULL)
        AND (wanted.deduplication_window IS NULL
             OR j.created_at > at - make_interval(secs => wanted.deduplication_window))
        AND NOT (j.id = ANY(wanted.deduplication_exclude))
      ORDER BY j.id DESC LIMIT 1;
    END IF;
    skipped[wanted.item + 1] := winner IS NOT NULL;
    item := wanted.item;
    id := coalesce(winner, wanted.id);
    duplicate := id <> wanted.id;
    IF winner IS NOT NULL THEN
      planned := array_append(planned, wanted.id);
      actual := array_append(actual, winner);
      status := NULL;
      RETURN NEXT;
      CONTINUE;
    END IF;
    INSERT INTO /*schema*/job (
      /*include fragments/new_job_columns*/, blockers, runs_anyway, deduplication_key
    ) VALUES (
      /*include fragments/new_job_values*/, cardinality(wanted.blockers), wanted.runs_anyway, wanted.deduplication_key
    );
    IF cardinality(wanted.blockers) > 0 THEN
      waiting := true;
    ELSE
      status := 'pending';
      RETURN NEXT;
    END IF;
  END LOOP;
  IF NOT waiting THEN
    RETURN;
  END IF;

  WITH stored AS (
    INSERT INTO /*schema*/blocker (job_id, position, blocked_by_chain_id)
      SELECT i.id, e.place, coalesce(d.actual, e.chain)
      FROM /*schema*/start_items(items) i CROSS JOIN unnest(i.blockers) WITH ORDINALITY e(chain, place)
        LEFT JOIN unnest(planned, actual) d(planned, actual) ON d.planned = e.chain
      WHERE NOT skipped[i.item + 1]
      RETURNING blocked_by_chain_id
  ) SELECT array_agg(DISTINCT s.blocked_by_chain_id) INTO edges FROM stored s;
  -- The headers of all blockers, in one order; a blocker that is just ending is waited for.
  PERFORM 1 FROM /*schema*/job h WHERE h.id = ANY(edges) AND h.chain_index = 0 ORDER BY h.id FOR NO KEY UPDATE;
  -- Who ends a blocker in REPEATABLE READ, with a snapshot from before, must fail and come again: a lock that has been
  -- given up does not make it, a change does.
  UPDATE /*schema*/job h SET has_dependents = true WHERE h.id = ANY(edges)
    AND (NOT h.has_dependents OR current_setting('transaction_isolation') <> 'read committed');
  SELECT array_agg(e ORDER BY e) INTO missing FROM unnest(edges) e
    WHERE NOT EXISTS (SELECT FROM /*schema*/job h WHERE h.id = e AND h.chain_index = 0);
  IF missing IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = array_to_string(missing, ',');
  END IF;

  -- Blockers before the jobs that wait for them, so that a failure spreads within the batch.
  FOR wanted IN
    SELECT * FROM /*schema*/start_items(items) i
    WHERE NOT skipped[i.item + 1] AND cardinality(i.blockers) > 0 ORDER BY i.item DESC
  LOOP
    SELECT count(*) FILTER (WHERE h.chain_ended_at IS NULL)::integer AS open, bool_or(h.chain_failed) AS failed
      INTO ending
      FROM /*schema*/blocker b JOIN /*schema*/job h ON h.id = b.blocked_by_chain_id WHERE b.job_id = wanted.id;
    final := 'pending';
    IF ending.failed AND NOT wanted.runs_anyway THEN
      final := 'failed';
      UPDATE /*schema*/job j SET status = final, failure_reason = 'blocker', ended_at = at, deferred = false,
          open_blockers = ending.open,
          chain_ended_at = CASE WHEN j.chain_index = 0 THEN at END, chain_failed = (j.chain_index = 0)
        WHERE j.id = wanted.id;
      IF wanted.chain_index > 0 THEN
        UPDATE /*schema*/job h SET chain_ended_at = at, chain_failed = true WHERE h.id = wanted.chain_id;
        RETURN QUERY SELECT NULL::integer, c.job_id, false, c.change, NULL::text
          FROM /*schema*/chains_ended(ARRAY[wanted.chain_id], at) c;
      END IF;
    ELSIF ending.open > 0 THEN
      final := 'blocked';
      UPDATE /*schema*/job j SET status = final, open_blockers = ending.open, deferred = false WHERE j.id = wanted.id;
    END IF;
    RETURN QUERY SELECT wanted.item, wanted.id, false, final, NULL::text;
  END LOOP;
EXCEPTION
  WHEN unique_violation THEN
    RETURN QUERY SELECT t.item, t.id, false, NULL::text, 'duplicate_id'
      FROM (SELECT i.item, i.id, count(*) OVER (PARTITION BY i.id) AS times FROM /*schema*/start_items(items) i) t
      WHERE t.times > 1 OR EXISTS (SELECT FROM /*schema*/job j WHERE j.id = t.id);
  WHEN SQLSTATE 'OW001' THEN
    RETURN QUERY SELECT 0, m::uuid, false, NULL::text, 'blocker_not_found'
      FROM unnest(string_to_array(SQLERRM, ',')) m;
END $$;
