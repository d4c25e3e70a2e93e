-- Jobs, what they wait for, and the functions that change several jobs at once.
--
-- A function is used where a change must see what other transactions have just committed: each statement inside a
-- volatile function has a fresh snapshot, the parts of one big statement share the one from its beginning.

CREATE TABLE /*schema*/job (
  id                uuid PRIMARY KEY,
  chain_id          uuid NOT NULL,
  chain_index       integer NOT NULL,
  type_name         text NOT NULL,
  payload_version   integer NOT NULL,
  status            text NOT NULL CHECK (status IN ('blocked', 'pending', 'running', 'completed', 'failed')),
  -- -priority: an ascending index can be bounded from below, a mixed one cannot.
  rank              integer NOT NULL,
  -- Pending, but not yet due: kept out of the index that workers take from.
  deferred          boolean NOT NULL,
  limit_key         text,
  input             json NOT NULL,
  output            json,
  created_at        timestamptz NOT NULL,
  scheduled_at      timestamptz NOT NULL,
  origin_id         uuid,
  root_id           uuid NOT NULL,
  attempt           integer NOT NULL DEFAULT 0,
  failures          integer NOT NULL DEFAULT 0,
  -- Database errors and crashes in a row; an attempt that ends otherwise resets them.
  transients        integer NOT NULL DEFAULT 0,
  crashes           integer NOT NULL DEFAULT 0,
  leased_by         text,
  leased_until      timestamptz,
  cancel_requested_at timestamptz,
  -- Of the last attempts that failed, newest last.
  errors            json,
  progress          double precision,
  progress_note     text,
  failure_reason    text,
  ended_at          timestamptz,
  completed_by      text,
  blockers          integer NOT NULL DEFAULT 0,
  open_blockers     integer NOT NULL DEFAULT 0,
  runs_anyway       boolean NOT NULL DEFAULT false,
  deduplication_key text,
  -- The first job of a chain is its header: what others ask about a chain is one primary key look-up.
  chain_ended_at    timestamptz,
  chain_failed      boolean NOT NULL DEFAULT false,
  has_dependents    boolean NOT NULL DEFAULT false
) WITH (fillfactor = 85);

CREATE INDEX job_pending ON /*schema*/job (type_name, payload_version, rank, scheduled_at, id)
  WHERE status = 'pending' AND NOT deferred;
CREATE INDEX job_deferred ON /*schema*/job (type_name, scheduled_at) WHERE status = 'pending' AND deferred;
CREATE INDEX job_running ON /*schema*/job (type_name) WHERE status = 'running';
-- The last to fail at the end: counted and listed without reading what completed.
CREATE INDEX job_failed ON /*schema*/job (type_name, ended_at, id) WHERE status = 'failed';
CREATE UNIQUE INDEX job_chain ON /*schema*/job (chain_id, chain_index) WHERE chain_index > 0;
CREATE INDEX job_deduplication ON /*schema*/job (deduplication_key, type_name)
  WHERE deduplication_key IS NOT NULL AND chain_index = 0;

CREATE TABLE /*schema*/blocker (
  job_id              uuid NOT NULL,
  position            integer NOT NULL,
  blocked_by_chain_id uuid NOT NULL,
  PRIMARY KEY (job_id, position)
);
CREATE INDEX blocker_chain ON /*schema*/blocker (blocked_by_chain_id);

CREATE TABLE /*schema*/paused_type (
  type_name text PRIMARY KEY,
  paused_at timestamptz NOT NULL
);

-- Fail unless something was found: for the last word of a transaction whose COMMIT is already on its way and must not go
-- through when the attempt no longer holds its job. Stable, so that a statement asks once and not for each of its rows.
CREATE FUNCTION /*schema*/insist(held boolean) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF held IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'OW003', MESSAGE = 'the attempt no longer holds its job';
  END IF;
  RETURN true;
END $$;

-- Complete an attempt and start its continuation, which waits for nothing, as settle.sql would; fails as above.
CREATE FUNCTION /*schema*/continue_attempt(
  settling uuid, its_attempt integer, its_holder text, next_id uuid, next_type_name text, next_version integer,
  next_rank integer, next_limit_key text, next_input json, next_at timestamptz, next_delay double precision,
  at timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  settled record;
  due timestamptz := coalesce(next_at, at + make_interval(secs => next_delay));
BEGIN
  UPDATE /*schema*/job j SET
    status = 'completed', output = NULL, failure_reason = NULL, transients = 0, crashes = 0, deferred = false,
    leased_by = NULL, leased_until = NULL, open_blockers = 0, ended_at = at, completed_by = its_holder,
    chain_ended_at = NULL
  WHERE j.id = settling AND j.attempt = its_attempt AND j.leased_by = its_holder AND j.ended_at IS NULL
  RETURNING j.chain_id, j.chain_index, j.root_id INTO settled;
  PERFORM /*schema*/insist(CASE WHEN FOUND THEN true END);
  INSERT INTO /*schema*/job (
    id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, limit_key, input, created_at,
    scheduled_at, origin_id, root_id
  ) VALUES (
    next_id, settled.chain_id, settled.chain_index + 1, next_type_name, next_version, 'pending', next_rank, due > at,
    next_limit_key, next_input, at, due, settling, settled.root_id
  );
END $$;

-- The chains have ended: unblock, or fail, what waited for them, and so on for the chains that fail by it.
CREATE FUNCTION /*schema*/chains_ended(ended uuid[], at timestamptz)
RETURNS TABLE (job_id uuid, chain_id uuid, type_name text, change text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  frontier uuid[] := ended;
  failing  uuid[];
  changed  record;
BEGIN
  WHILE cardinality(frontier) > 0 LOOP
    failing := '{}';
    PERFORM 1 FROM /*schema*/job j
      WHERE j.status = 'blocked'
        AND j.id IN (SELECT b.job_id FROM /*schema*/blocker b WHERE b.blocked_by_chain_id = ANY(frontier))
      ORDER BY j.id FOR NO KEY UPDATE;
    FOR changed IN
      WITH edge AS (
        SELECT b.job_id, count(*)::integer AS ended, bool_or(h.chain_failed) AS failed
        FROM /*schema*/blocker b JOIN /*schema*/job h ON h.id = b.blocked_by_chain_id
        WHERE b.blocked_by_chain_id = ANY(frontier)
        GROUP BY b.job_id
      ), verdict AS (
        SELECT j.id, e.ended, e.failed AND NOT j.runs_anyway AS fails
        FROM edge e JOIN /*schema*/job j ON j.id = e.job_id
        WHERE j.status = 'blocked'
      )
      UPDATE /*schema*/job j SET
        open_blockers = j.open_blockers - v.ended,
        status = CASE WHEN v.fails THEN 'failed' WHEN j.open_blockers <= v.ended THEN 'pending' ELSE 'blocked' END,
        scheduled_at = greatest(j.scheduled_at, at),
        deferred = NOT v.fails AND j.scheduled_at > at,
        failure_reason = CASE WHEN v.fails THEN 'blocker' END,
        ended_at = CASE WHEN v.fails THEN at END,
        chain_ended_at = CASE WHEN v.fails AND j.chain_index = 0 THEN at END,
        chain_failed = v.fails AND j.chain_index = 0
      FROM verdict v
      WHERE j.id = v.id
      RETURNING j.id, j.chain_id, j.chain_index, j.type_name, j.status
    LOOP
      IF changed.status = 'blocked' THEN
        CONTINUE;
      END IF;
      IF changed.status = 'failed' THEN
        failing := failing || changed.chain_id;
        IF changed.chain_index > 0 THEN
          UPDATE /*schema*/job h SET chain_ended_at = at, chain_failed = true WHERE h.id = changed.chain_id;
        END IF;
      END IF;
      job_id := changed.id;
      chain_id := changed.chain_id;
      type_name := changed.type_name;
      change := CASE changed.status WHEN 'failed' THEN 'failed' ELSE 'unblocked' END;
      RETURN NEXT;
    END LOOP;
    SELECT coalesce(array_agg(h.id ORDER BY h.id), '{}') INTO frontier
      FROM /*schema*/job h WHERE h.id = ANY(failing) AND h.has_dependents;
  END LOOP;
END $$;

-- The items of a start as rows.
CREATE FUNCTION /*schema*/start_items(items json)
RETURNS TABLE (
  item integer, parent integer, id uuid, chain_id uuid, chain_index integer, type_name text, payload_version integer,
  rank integer, limit_key text, input json, delay double precision, scheduled_at timestamptz, origin_id uuid,
  root_id uuid, blockers uuid[], runs_anyway boolean, deduplication_key text, deduplication_scope text,
  deduplication_window double precision, deduplication_exclude uuid[]
)
LANGUAGE sql STABLE AS $$
  -- The input travels as text: as a JSON value, null would become no value at all.
  SELECT x.item, x.parent, x.id, x.chain_id, x.chain_index, x.type_name, x.payload_version, x.rank, x.limit_key,
         x.input::json, x.delay, x.scheduled_at, x.origin_id, x.root_id, x.blockers, x.runs_anyway, x.deduplication_key,
         x.deduplication_scope, x.deduplication_window, x.deduplication_exclude
  FROM json_to_recordset(items) AS x (
    item integer, parent integer, id uuid, chain_id uuid, chain_index integer, type_name text, payload_version integer,
    rank integer, limit_key text, input text, delay double precision, scheduled_at timestamptz, origin_id uuid,
    root_id uuid, blockers uuid[], runs_anyway boolean, deduplication_key text, deduplication_scope text,
    deduplication_window double precision, deduplication_exclude uuid[])
$$;

-- Start jobs that need a look first: a deduplication key, blockers, or an id chosen by the caller.
-- Items come parents first, each followed by the blockers it starts (`parent` is the parent's position, from 0).
-- A refusal is a row with a problem, never an error: the caller's transaction stays usable.
CREATE FUNCTION /*schema*/start(items json, at timestamptz)
RETURNS TABLE (item integer, id uuid, duplicate boolean, status text, problem text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  wanted  record;
  winner  uuid;
  actual  jsonb := '{}';
  skipped boolean[] := '{}';
  edges   uuid[];
  missing uuid[];
  ending  record;
  final   text;
BEGIN
  IF EXISTS (SELECT FROM json_array_elements(items) x WHERE x->>'deduplication_key' IS NOT NULL) THEN
    IF current_setting('transaction_isolation') = 'repeatable read' THEN
      RETURN QUERY SELECT 0, NULL::uuid, false, NULL::text, 'isolation';
      RETURN;
    END IF;
    -- In one order for everybody. The second of two racing starts waits here until the first has ended.
    PERFORM pg_advisory_xact_lock(k.lock) FROM (
      SELECT DISTINCT hashtextextended('/*schema*/job' || (x->>'type_name') || chr(1) || (x->>'deduplication_key'), 0) AS lock
      FROM json_array_elements(items) x WHERE x->>'deduplication_key' IS NOT NULL ORDER BY 1) k;
  END IF;

  FOR wanted IN SELECT * FROM /*schema*/start_items(items) i ORDER BY i.item LOOP
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
    actual := actual || jsonb_build_object(wanted.id, coalesce(winner, wanted.id));
    IF winner IS NOT NULL THEN
      RETURN QUERY SELECT wanted.item, winner, winner <> wanted.id, NULL::text, NULL::text;
      CONTINUE;
    END IF;
    INSERT INTO /*schema*/job (
      id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, limit_key, input, created_at,
      scheduled_at, origin_id, root_id, blockers, runs_anyway, deduplication_key
    ) VALUES (
      wanted.id, wanted.chain_id, wanted.chain_index, wanted.type_name, wanted.payload_version, 'pending', wanted.rank,
      coalesce(wanted.scheduled_at, at + make_interval(secs => wanted.delay)) > at, wanted.limit_key, wanted.input, at,
      coalesce(wanted.scheduled_at, at + make_interval(secs => wanted.delay)), wanted.origin_id, wanted.root_id,
      cardinality(wanted.blockers), wanted.runs_anyway, wanted.deduplication_key
    );
  END LOOP;

  -- The headers of all blockers, in one order; a blocker that is just ending is waited for.
  SELECT coalesce(array_agg(DISTINCT (actual->>(e::text))::uuid) FILTER (WHERE actual ? e::text), '{}')
      || coalesce(array_agg(DISTINCT e) FILTER (WHERE NOT actual ? e::text), '{}')
    INTO edges
    FROM /*schema*/start_items(items) i, unnest(i.blockers) e WHERE NOT skipped[i.item + 1];
  PERFORM 1 FROM /*schema*/job h WHERE h.id = ANY(edges) AND h.chain_index = 0 ORDER BY h.id FOR NO KEY UPDATE;
  UPDATE /*schema*/job h SET has_dependents = true WHERE h.id = ANY(edges) AND NOT h.has_dependents;
  SELECT array_agg(e ORDER BY e) INTO missing FROM unnest(edges) e
    WHERE NOT EXISTS (SELECT FROM /*schema*/job h WHERE h.id = e AND h.chain_index = 0);
  IF missing IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'OW001', MESSAGE = array_to_string(missing, ',');
  END IF;

  -- Blockers before the jobs that wait for them, so that a failure spreads within the batch.
  FOR wanted IN SELECT * FROM /*schema*/start_items(items) i WHERE NOT skipped[i.item + 1] ORDER BY i.item DESC LOOP
    final := NULL;
    IF cardinality(wanted.blockers) > 0 THEN
      INSERT INTO /*schema*/blocker (job_id, position, blocked_by_chain_id)
        SELECT wanted.id, e.at, coalesce((actual->>(e.chain::text))::uuid, e.chain)
        FROM unnest(wanted.blockers) WITH ORDINALITY e(chain, at);
      SELECT count(*) FILTER (WHERE h.chain_ended_at IS NULL)::integer AS open, bool_or(h.chain_failed) AS failed
        INTO ending
        FROM /*schema*/blocker b JOIN /*schema*/job h ON h.id = b.blocked_by_chain_id WHERE b.job_id = wanted.id;
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
    END IF;
    RETURN QUERY SELECT wanted.item, wanted.id, false, coalesce(final, 'pending'), NULL::text;
  END LOOP;
EXCEPTION
  WHEN unique_violation THEN
    RETURN QUERY SELECT i.item, i.id, false, NULL::text, 'duplicate_id' FROM /*schema*/start_items(items) i
      WHERE EXISTS (SELECT FROM /*schema*/job j WHERE j.id = i.id)
         OR (SELECT count(*) FROM /*schema*/start_items(items) twin WHERE twin.id = i.id) > 1;
  WHEN SQLSTATE 'OW001' THEN
    RETURN QUERY SELECT 0, m::uuid, false, NULL::text, 'blocker_not_found'
      FROM unnest(string_to_array(SQLERRM, ',')) m;
END $$;

-- Complete an attempt and start a continuation that needs a look first, both or neither. A stale attempt gives no rows;
-- a refusal is a row with a problem, never an error: nothing has changed then, and the caller's transaction stays usable.
CREATE FUNCTION /*schema*/continue_checked(
  settling uuid, its_attempt integer, its_holder text, completer text, progressed double precision, noted text,
  items json, at timestamptz)
RETURNS TABLE (job_id uuid, chain_id uuid, type_name text, status text, change text, problem text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  started record;
  refused boolean := false;
BEGIN
  RETURN QUERY
    UPDATE /*schema*/job j SET
      status = 'completed', output = NULL, failure_reason = NULL, ended_at = at, completed_by = completer,
      leased_by = NULL, leased_until = NULL, transients = 0, crashes = 0, open_blockers = 0, deferred = false,
      progress = coalesce(progressed, j.progress),
      progress_note = CASE WHEN progressed IS NULL THEN j.progress_note ELSE noted END
    WHERE j.id = settling AND j.attempt = its_attempt AND j.leased_by IS NOT DISTINCT FROM its_holder
      AND j.ended_at IS NULL
    RETURNING j.id, j.chain_id, j.type_name, j.status, 'settled', NULL::text;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  -- After the update: the continuation sees its blockers as they are now that its own chain is locked.
  FOR started IN SELECT * FROM /*schema*/start(items, at) LOOP
    IF started.problem IS NOT NULL THEN
      refused := true;
      RETURN QUERY SELECT started.id, NULL::uuid, NULL::text, NULL::text, NULL::text, started.problem;
    ELSIF started.item IS NULL OR started.status = 'failed' THEN
      RETURN QUERY SELECT j.id, j.chain_id, j.type_name, NULL::text, started.status, NULL::text
        FROM /*schema*/job j WHERE j.id = started.id;
    END IF;
  END LOOP;
  IF refused THEN
    RAISE EXCEPTION USING ERRCODE = 'OW002';
  END IF;
EXCEPTION
  WHEN SQLSTATE 'OW002' THEN
    NULL;  -- the changes are undone; the rows, which say why, are not
END $$;

-- Lock the job a chain has come to. A chain that goes on at this moment is followed: look again after each wait.
CREATE FUNCTION /*schema*/lock_current(wanted uuid) RETURNS uuid
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  latest uuid;
  locked uuid;
BEGIN
  LOOP
    SELECT coalesce(
        (SELECT j.id FROM /*schema*/job j WHERE j.chain_id = wanted AND j.chain_index > 0
         ORDER BY j.chain_index DESC LIMIT 1),
        (SELECT h.id FROM /*schema*/job h WHERE h.id = wanted AND h.chain_index = 0))
      INTO latest;
    IF latest IS NULL OR latest = locked THEN
      RETURN latest;
    END IF;
    PERFORM 1 FROM /*schema*/job j WHERE j.id = latest FOR NO KEY UPDATE;
    locked := latest;
  END LOOP;
END $$;

-- The job a chain has come to, locked, as it is after the wait.
CREATE FUNCTION /*schema*/locked_job(wanted uuid) RETURNS SETOF /*schema*/job
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  latest uuid := /*schema*/lock_current(wanted);
BEGIN
  RETURN QUERY SELECT j.* FROM /*schema*/job j WHERE j.id = latest;
END $$;

-- Cancel chains: a waiting job fails at once, with what waits for its chain; a running one is asked to stop.
CREATE FUNCTION /*schema*/cancel(chain_ids uuid[], at timestamptz)
RETURNS TABLE (job_id uuid, chain_id uuid, type_name text, change text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  wanted  uuid;
  latest  uuid;
  changed record;
  failing uuid[] := '{}';
BEGIN
  FOR wanted IN SELECT DISTINCT c FROM unnest(chain_ids) c ORDER BY c LOOP
    latest := /*schema*/lock_current(wanted);
    UPDATE /*schema*/job j SET
      status = CASE WHEN j.status = 'running' THEN 'running' ELSE 'failed' END,
      failure_reason = CASE WHEN j.status = 'running' THEN NULL ELSE 'cancelled' END,
      ended_at = CASE WHEN j.status = 'running' THEN NULL ELSE at END,
      cancel_requested_at = at,
      deferred = false,
      chain_ended_at = CASE WHEN j.status <> 'running' AND j.chain_index = 0 THEN at END,
      chain_failed = j.status <> 'running' AND j.chain_index = 0
    WHERE j.id = latest AND j.status IN ('blocked', 'pending', 'running')
    RETURNING j.id, j.chain_id, j.chain_index, j.type_name, j.status INTO changed;
    CONTINUE WHEN NOT FOUND;
    IF changed.status = 'failed' THEN
      failing := failing || changed.chain_id;
      UPDATE /*schema*/job h SET chain_ended_at = at, chain_failed = true
        WHERE changed.chain_index > 0 AND h.id = changed.chain_id;
    END IF;
    RETURN QUERY SELECT changed.id, changed.chain_id, changed.type_name,
      CASE changed.status WHEN 'failed' THEN 'failed' ELSE 'cancel_requested' END;
  END LOOP;
  SELECT coalesce(array_agg(h.id ORDER BY h.id), '{}') INTO failing
    FROM /*schema*/job h WHERE h.id = ANY(failing) AND h.has_dependents;
  RETURN QUERY SELECT * FROM /*schema*/chains_ended(failing, at);
END $$;

-- Bring failed chains back: their last job is pending again, and what failed only through them is blocked again.
CREATE FUNCTION /*schema*/retry(chain_ids uuid[], at timestamptz)
RETURNS TABLE (job_id uuid, chain_id uuid, type_name text, change text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  frontier uuid[];
  wanted   record;
  edge     record;
BEGIN
  PERFORM 1 FROM /*schema*/job h WHERE h.id = ANY(chain_ids) ORDER BY h.id FOR NO KEY UPDATE;
  frontier := '{}';
  FOR wanted IN
    SELECT j.id, j.chain_id, j.chain_index, j.type_name, j.failure_reason FROM /*schema*/job j
    WHERE ((j.id = ANY(chain_ids) AND j.chain_index = 0) OR (j.chain_id = ANY(chain_ids) AND j.chain_index > 0))
      AND j.status = 'failed'
    ORDER BY j.id
  LOOP
    SELECT count(*) FILTER (WHERE h.chain_ended_at IS NULL)::integer AS open,
           coalesce(bool_or(h.chain_failed), false) AS failed
      INTO edge FROM /*schema*/blocker b JOIN /*schema*/job h ON h.id = b.blocked_by_chain_id
      WHERE b.job_id = wanted.id;
    -- A job whose blocker is still failed would fail again: that blocker is what must be retried.
    IF wanted.failure_reason = 'blocker' AND edge.failed THEN
      CONTINUE;
    END IF;
    UPDATE /*schema*/job j SET
      status = CASE WHEN edge.open > 0 THEN 'blocked' ELSE 'pending' END, open_blockers = edge.open,
      failures = 0, transients = 0, crashes = 0, failure_reason = NULL, ended_at = NULL, cancel_requested_at = NULL,
      scheduled_at = at, deferred = false, completed_by = NULL
      WHERE j.id = wanted.id;
    UPDATE /*schema*/job h SET chain_ended_at = NULL, chain_failed = false WHERE h.id = wanted.chain_id;
    frontier := frontier || wanted.chain_id;
    RETURN QUERY SELECT wanted.id, wanted.chain_id, wanted.type_name,
      CASE WHEN edge.open > 0 THEN 'blocked' ELSE 'retried' END;
  END LOOP;

  WHILE cardinality(frontier) > 0 LOOP
    -- Jobs that still wait (they run anyway when a blocker fails) have one more chain to wait for.
    UPDATE /*schema*/job j SET
        open_blockers = (SELECT count(*) FROM /*schema*/blocker b JOIN /*schema*/job h ON h.id = b.blocked_by_chain_id
                         WHERE b.job_id = j.id AND h.chain_ended_at IS NULL)
      WHERE j.status = 'blocked' AND j.runs_anyway
        AND j.id IN (SELECT b.job_id FROM /*schema*/blocker b WHERE b.blocked_by_chain_id = ANY(frontier));
    SELECT coalesce(array_agg(j.id ORDER BY j.id), '{}') INTO frontier
      FROM /*schema*/job j
      WHERE j.status = 'failed' AND j.failure_reason = 'blocker'
        AND j.id IN (SELECT b.job_id FROM /*schema*/blocker b WHERE b.blocked_by_chain_id = ANY(frontier))
        AND NOT EXISTS (SELECT FROM /*schema*/blocker b JOIN /*schema*/job h ON h.id = b.blocked_by_chain_id
                        WHERE b.job_id = j.id AND h.chain_failed);
    PERFORM 1 FROM /*schema*/job j WHERE j.id = ANY(frontier) ORDER BY j.id FOR NO KEY UPDATE;
    UPDATE /*schema*/job j SET status = 'blocked', failure_reason = NULL, ended_at = NULL,
        open_blockers = (SELECT count(*) FROM /*schema*/blocker b JOIN /*schema*/job h ON h.id = b.blocked_by_chain_id
                         WHERE b.job_id = j.id AND h.chain_ended_at IS NULL)
      WHERE j.id = ANY(frontier);
    RETURN QUERY SELECT j.id, j.chain_id, j.type_name, 'blocked' FROM /*schema*/job j WHERE j.id = ANY(frontier);
    SELECT coalesce(array_agg(DISTINCT j.chain_id), '{}') INTO frontier FROM /*schema*/job j WHERE j.id = ANY(frontier);
    UPDATE /*schema*/job h SET chain_ended_at = NULL, chain_failed = false WHERE h.id = ANY(frontier);
  END LOOP;
END $$;

-- Delete whole chains, unless an unfinished job elsewhere waits for one of them; then only say which.
CREATE FUNCTION /*schema*/delete_chains(chain_ids uuid[], with_blockers boolean)
RETURNS TABLE (chain_id uuid, job_id uuid, change text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  doomed uuid[];
  more   uuid[];
BEGIN
  -- Current job and header, in the order in which settling locks them: nobody may go on with the chain, or come to wait
  -- for it, meanwhile.
  PERFORM /*schema*/lock_current(c.id) FROM (SELECT unnest(chain_ids) AS id ORDER BY 1) c;
  PERFORM 1 FROM /*schema*/job h WHERE h.id = ANY(chain_ids) AND h.chain_index = 0 ORDER BY h.id FOR UPDATE;
  SELECT coalesce(array_agg(h.id), '{}') INTO doomed
    FROM /*schema*/job h WHERE h.id = ANY(chain_ids) AND h.chain_index = 0;
  WHILE with_blockers LOOP
    SELECT array_agg(DISTINCT b.blocked_by_chain_id) INTO more
      FROM /*schema*/job j JOIN /*schema*/blocker b ON b.job_id = j.id
      WHERE (j.id = ANY(doomed) OR (j.chain_id = ANY(doomed) AND j.chain_index > 0))
        AND NOT b.blocked_by_chain_id = ANY(doomed);
    EXIT WHEN more IS NULL;
    PERFORM /*schema*/lock_current(c.id) FROM (SELECT unnest(more) AS id ORDER BY 1) c;
    PERFORM 1 FROM /*schema*/job h WHERE h.id = ANY(more) ORDER BY h.id FOR UPDATE;
    doomed := doomed || more;
  END LOOP;

  RETURN QUERY
    SELECT b.blocked_by_chain_id, j.id, 'referenced'
    FROM /*schema*/blocker b JOIN /*schema*/job j ON j.id = b.job_id
    WHERE b.blocked_by_chain_id = ANY(doomed) AND NOT j.chain_id = ANY(doomed)
      AND j.status NOT IN ('completed', 'failed')
    ORDER BY 1, 2;
  IF FOUND THEN
    RETURN;
  END IF;

  DELETE FROM /*schema*/blocker b WHERE b.blocked_by_chain_id = ANY(doomed);
  DELETE FROM /*schema*/blocker b USING /*schema*/job j
    WHERE b.job_id = j.id AND (j.id = ANY(doomed) OR (j.chain_id = ANY(doomed) AND j.chain_index > 0));
  RETURN QUERY
    WITH gone AS (
      DELETE FROM /*schema*/job j
      WHERE j.id = ANY(doomed) OR (j.chain_id = ANY(doomed) AND j.chain_index > 0)
      RETURNING j.chain_id, j.id
    ) SELECT gone.chain_id, gone.id, 'deleted' FROM gone;
END $$;
