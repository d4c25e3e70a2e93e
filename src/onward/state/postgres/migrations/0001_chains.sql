-- Jobs, what they wait for, and the functions that change several jobs at once.
--
-- A function is used where a change must see what other transactions have just committed: each statement inside a
-- volatile function has a fresh snapshot, the parts of one big statement share the one from its beginning.
--
-- Built-in functions and operators are named with their schema when this is loaded, and functions in PL/pgSQL get a
-- search_path of their own, unless they call nothing: state/statement.py says why.
--
-- One order of locks for everybody:
--   1. the advisory locks of deduplication keys, sorted: those of types before those of single keys;
--   2. a chain before the jobs that wait for it: who ends a chain locks what waits for it afterwards, and who wants both
--      (a start, a retry, a cancel or a deletion with the blockers) locks the blockers first;
--   3. of a chain, the job it has come to before its first job, the header;
--   4. several of a kind in the order of their ids.
-- Whether a job is blocked, and by how many chains, is only decided while the headers of all these chains are locked:
-- a chain that ends at this moment is waited for, and one that ends later finds the job. So no unblocking gets lost,
-- whatever starts, ends, fails, is cancelled, retried or deleted beside it. Where an order cannot be kept (a chain that
-- waits for another and for what that one waits for), one of two is undone by the server and tried again.

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

-- What who starts or retries a chain with a key locks: the second waits until the first has ended. Without a key: what
-- stands for all keys of a type.
CREATE FUNCTION /*schema*/key_lock(type_name text, key text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
  SELECT hashtextextended('/*schema*/job' || type_name || chr(1) || key, 0)
$$;

-- Lock keys until the transaction ends, in one order for everybody. A server has room for some thousand locks, of all
-- its clients together: whoever comes with many keys has the types for himself instead, which the others only share.
CREATE FUNCTION /*schema*/lock_keys(type_names text[], keys text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  IF cardinality(keys) > 100 THEN
    PERFORM pg_advisory_xact_lock(k.lock) FROM (
      SELECT DISTINCT /*schema*/key_lock(t, '') AS lock FROM unnest(type_names) t ORDER BY 1) k;
  ELSE
    PERFORM pg_advisory_xact_lock_shared(k.lock) FROM (
      SELECT DISTINCT /*schema*/key_lock(t, '') AS lock FROM unnest(type_names) t ORDER BY 1) k;
    PERFORM pg_advisory_xact_lock(k.lock) FROM (
      SELECT DISTINCT /*schema*/key_lock(w.type_name, w.key) AS lock
      FROM unnest(type_names, keys) w(type_name, key) ORDER BY 1) k;
  END IF;
END $$;

-- How many of the chains that a job waits for have not ended. Each is looked up by itself: as a join, and with statistics
-- from before most of them began, the planner goes through all live chains for each job.
CREATE FUNCTION /*schema*/still_open(waiting uuid) RETURNS integer
LANGUAGE sql STABLE AS $$
  SELECT count(*)::integer FROM /*schema*/blocker b
  WHERE b.job_id = waiting
    AND (SELECT h.chain_ended_at IS NULL FROM /*schema*/job h WHERE h.id = b.blocked_by_chain_id)
$$;

-- Every job of these chains. Two index look-ups instead of an OR, for which the planner would read the whole table.
CREATE FUNCTION /*schema*/jobs_of(chain_ids uuid[]) RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
  SELECT h.id FROM /*schema*/job h WHERE h.id = ANY(chain_ids) AND h.chain_index = 0
  UNION ALL
  SELECT j.id FROM /*schema*/job j WHERE j.chain_id = ANY(chain_ids) AND j.chain_index > 0
$$;

-- The job each of these chains has come to; a chain that does not exist is missing.
CREATE FUNCTION /*schema*/current_jobs(chain_ids uuid[]) RETURNS TABLE (chain_id uuid, job_id uuid)
LANGUAGE sql STABLE AS $$
  SELECT h.id, coalesce(
    (SELECT j.id FROM /*schema*/job j WHERE j.chain_id = h.id AND j.chain_index > 0
     ORDER BY j.chain_index DESC LIMIT 1), h.id)
  FROM /*schema*/job h WHERE h.id = ANY(chain_ids) AND h.chain_index = 0
$$;

-- Lock the jobs that chains have come to; their ids. A chain that goes on at this moment is followed: look again after
-- each wait.
CREATE FUNCTION /*schema*/lock_current(chain_ids uuid[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  latest uuid[];
  locked uuid[];
BEGIN
  LOOP
    SELECT coalesce(array_agg(c.job_id ORDER BY c.job_id), '{}') INTO latest FROM /*schema*/current_jobs(chain_ids) c;
    IF latest = locked THEN
      RETURN latest;
    END IF;
    PERFORM 1 FROM /*schema*/job j WHERE j.id = ANY(latest) ORDER BY j.id FOR NO KEY UPDATE;
    locked := latest;
  END LOOP;
END $$;

-- The job a chain has come to, locked, as it is after the wait.
CREATE FUNCTION /*schema*/locked_job(wanted uuid) RETURNS SETOF /*schema*/job
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  latest uuid[] := /*schema*/lock_current(ARRAY[wanted]);
BEGIN
  RETURN QUERY SELECT j.* FROM /*schema*/job j WHERE j.id = ANY(latest);
END $$;

-- The chains that these wait, or waited, for, and so on: the farthest first, which is the order to lock them in.
CREATE FUNCTION /*schema*/blockers_of(chain_ids uuid[]) RETURNS uuid[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
  found    uuid[] := '{}';
  frontier uuid[] := chain_ids;
  steps    integer := 0;
BEGIN
  LOOP
    SELECT array_agg(DISTINCT b.blocked_by_chain_id) INTO frontier
      FROM /*schema*/blocker b
      WHERE b.job_id IN (SELECT * FROM /*schema*/jobs_of(frontier)) AND NOT b.blocked_by_chain_id = ANY(chain_ids);
    steps := steps + 1;
    -- More steps than chains: they wait for one another in a circle.
    EXIT WHEN frontier IS NULL OR steps > cardinality(found) + 1;
    -- One that was found nearer by is farther off, too: that counts.
    found := frontier || ARRAY(
      SELECT f.id FROM unnest(found) WITH ORDINALITY f(id, place) WHERE NOT f.id = ANY(frontier) ORDER BY f.place);
  END LOOP;
  RETURN found;
END $$;

-- Fail unless something was found: for the last word of a transaction whose COMMIT is already on its way and must not go
-- through when the attempt no longer holds its job. Stable, so that a statement asks once and not for each of its rows.
CREATE FUNCTION /*schema*/insist(held boolean) RETURNS boolean
LANGUAGE plpgsql /*calls nothing*/ STABLE AS $$
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
RETURNS TABLE (job_id uuid, chain_id uuid, type_name text, change text, reason text)
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
      reason := CASE changed.status WHEN 'failed' THEN 'blocker' END;
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
      id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, limit_key, input, created_at,
      scheduled_at, origin_id, root_id, blockers, runs_anyway, deduplication_key
    ) VALUES (
      wanted.id, wanted.chain_id, wanted.chain_index, wanted.type_name, wanted.payload_version, 'pending', wanted.rank,
      coalesce(wanted.scheduled_at, at + make_interval(secs => wanted.delay)) > at, wanted.limit_key, wanted.input, at,
      coalesce(wanted.scheduled_at, at + make_interval(secs => wanted.delay)), wanted.origin_id, wanted.root_id,
      cardinality(wanted.blockers), wanted.runs_anyway, wanted.deduplication_key
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

-- Complete an attempt and start a continuation that needs a look first, both or neither. A stale attempt gives no rows;
-- a refusal is a row with a problem, never an error: nothing has changed then, and the caller's transaction stays usable.
-- An attempt that was to be cancelled fails instead, as in settle.sql.
CREATE FUNCTION /*schema*/continue_checked(
  settling uuid, its_attempt integer, its_holder text, completer text, progressed double precision, noted text,
  items json, at timestamptz)
RETURNS TABLE (
  job_id uuid, chain_id uuid, type_name text, status text, change text, reason text, problem text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  settled record;
  started record;
  refused boolean := false;
BEGIN
  UPDATE /*schema*/job j SET
    status = CASE WHEN j.cancel_requested_at IS NULL THEN 'completed' ELSE 'failed' END,
    failure_reason = CASE WHEN j.cancel_requested_at IS NOT NULL THEN 'cancelled' END,
    completed_by = CASE WHEN j.cancel_requested_at IS NULL THEN completer END,
    output = NULL, ended_at = at, leased_by = NULL, leased_until = NULL, transients = 0, crashes = 0,
    open_blockers = 0, deferred = false,
    progress = coalesce(progressed, j.progress),
    progress_note = CASE WHEN progressed IS NULL THEN j.progress_note ELSE noted END
  WHERE j.id = settling AND j.attempt = its_attempt AND j.leased_by IS NOT DISTINCT FROM its_holder
    AND j.ended_at IS NULL
  RETURNING j.id, j.chain_id, j.type_name, j.status, j.failure_reason INTO settled;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  RETURN QUERY SELECT settled.id, settled.chain_id, settled.type_name, settled.status, 'settled',
    settled.failure_reason, NULL::text;
  IF settled.status = 'failed' THEN
    UPDATE /*schema*/job h SET chain_ended_at = at, chain_failed = true WHERE h.id = settled.chain_id;
    RETURN QUERY SELECT c.job_id, c.chain_id, c.type_name, NULL::text, c.change, c.reason, NULL::text
      FROM /*schema*/chains_ended(ARRAY[settled.chain_id], at) c;
    RETURN;
  END IF;
  -- After the update: the continuation sees its blockers as they are now that its own chain is locked.
  FOR started IN SELECT * FROM /*schema*/start(items, at) LOOP
    IF started.problem IS NOT NULL THEN
      refused := true;
      RETURN QUERY SELECT started.id, NULL::uuid, NULL::text, NULL::text, NULL::text, NULL::text, started.problem;
    ELSIF started.item IS NULL OR started.status = 'failed' THEN
      RETURN QUERY SELECT j.id, j.chain_id, j.type_name, NULL::text, started.status, j.failure_reason, NULL::text
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

-- Of the chains somebody names, those that do not exist.
CREATE FUNCTION /*schema*/missing_chains(chain_ids uuid[]) RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
  SELECT DISTINCT c FROM unnest(chain_ids) c
  WHERE NOT EXISTS (SELECT FROM /*schema*/job h WHERE h.id = c AND h.chain_index = 0)
$$;

-- Lock the chains that these wait for, and so on, and of those that have not ended the ones that nothing else
-- unfinished waits for: what only serves chains that are to be cancelled.
CREATE FUNCTION /*schema*/only_serving(chain_ids uuid[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  below   uuid[] := /*schema*/blockers_of(chain_ids);
  one     uuid;
  serving uuid[] := '{}';
  more    uuid[];
BEGIN
  FOREACH one IN ARRAY below LOOP
    PERFORM /*schema*/lock_current(ARRAY[one]);
    PERFORM 1 FROM /*schema*/job h WHERE h.id = one FOR NO KEY UPDATE;
  END LOOP;
  LOOP
    SELECT array_agg(c) INTO more
      FROM unnest(below) c JOIN /*schema*/job h ON h.id = c AND h.chain_index = 0 AND h.chain_ended_at IS NULL
      WHERE NOT c = ANY(serving)
        AND NOT EXISTS (
          SELECT FROM /*schema*/blocker b JOIN /*schema*/job j ON j.id = b.job_id
          WHERE b.blocked_by_chain_id = c AND j.status NOT IN ('completed', 'failed')
            AND NOT j.chain_id = ANY(chain_ids || serving));
    EXIT WHEN more IS NULL;
    serving := serving || more;
  END LOOP;
  RETURN serving;
END $$;

-- Cancel chains: a waiting job fails at once, with what waits for its chain; a running one is asked to stop.
-- With the blockers, also the chains that only serve these. Where a chain does not exist, only say which.
CREATE FUNCTION /*schema*/cancel(chain_ids uuid[], with_blockers boolean, at timestamptz)
RETURNS TABLE (job_id uuid, chain_id uuid, type_name text, change text, reason text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  latest  uuid[];
  changed record;
  failing uuid[] := '{}';
  later   uuid[] := '{}';
BEGIN
  latest := /*schema*/lock_current(
    chain_ids || CASE WHEN with_blockers THEN /*schema*/only_serving(chain_ids) ELSE '{}' END);
  RETURN QUERY SELECT NULL::uuid, m, NULL::text, 'missing', NULL::text FROM /*schema*/missing_chains(chain_ids) m;
  IF FOUND THEN
    RETURN;
  END IF;
  FOR changed IN
    UPDATE /*schema*/job j SET
      status = CASE WHEN j.status = 'running' THEN 'running' ELSE 'failed' END,
      failure_reason = CASE WHEN j.status = 'running' THEN NULL ELSE 'cancelled' END,
      ended_at = CASE WHEN j.status = 'running' THEN NULL ELSE at END,
      cancel_requested_at = at,
      deferred = false,
      chain_ended_at = CASE WHEN j.status <> 'running' AND j.chain_index = 0 THEN at END,
      chain_failed = j.status <> 'running' AND j.chain_index = 0
    WHERE j.id = ANY(latest) AND j.status IN ('blocked', 'pending', 'running')
    RETURNING j.id, j.chain_id, j.chain_index, j.type_name, j.status, j.failure_reason
  LOOP
    job_id := changed.id;
    chain_id := changed.chain_id;
    type_name := changed.type_name;
    change := CASE changed.status WHEN 'failed' THEN 'failed' ELSE 'cancel_requested' END;
    reason := changed.failure_reason;
    RETURN NEXT;
    IF changed.status = 'failed' THEN
      failing := array_append(failing, changed.chain_id);
      IF changed.chain_index > 0 THEN
        later := array_append(later, changed.chain_id);
      END IF;
    END IF;
  END LOOP;
  PERFORM 1 FROM /*schema*/job h WHERE h.id = ANY(later) ORDER BY h.id FOR NO KEY UPDATE;
  UPDATE /*schema*/job h SET chain_ended_at = at, chain_failed = true WHERE h.id = ANY(later);
  SELECT coalesce(array_agg(h.id ORDER BY h.id), '{}') INTO failing
    FROM /*schema*/job h WHERE h.id = ANY(failing) AND h.has_dependents;
  RETURN QUERY SELECT * FROM /*schema*/chains_ended(failing, at);
END $$;

-- Run scheduled jobs now; one that is due keeps its place in line. Where a chain does not exist, only say which.
CREATE FUNCTION /*schema*/run_now(chain_ids uuid[], at timestamptz)
RETURNS TABLE (job_id uuid, chain_id uuid, type_name text, change text, reason text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  latest uuid[] := /*schema*/lock_current(chain_ids);
BEGIN
  RETURN QUERY SELECT NULL::uuid, m, NULL::text, 'missing', NULL::text FROM /*schema*/missing_chains(chain_ids) m;
  IF FOUND THEN
    RETURN;
  END IF;
  RETURN QUERY
    UPDATE /*schema*/job j SET scheduled_at = least(j.scheduled_at, at), deferred = false
    WHERE j.id = ANY(latest) AND j.status = 'pending'
    RETURNING j.id, j.chain_id, j.type_name, 'triggered', NULL::text;
END $$;

-- The live chain that has the deduplication key of another, which has ended.
CREATE FUNCTION /*schema*/key_holder(ended uuid) RETURNS uuid
LANGUAGE sql STABLE AS $$
  SELECT live.id FROM /*schema*/job h JOIN /*schema*/job live
    ON live.deduplication_key = h.deduplication_key AND live.type_name = h.type_name AND live.chain_index = 0
  WHERE h.id = ended AND h.deduplication_key IS NOT NULL AND live.id <> h.id AND live.chain_ended_at IS NULL
  ORDER BY live.id LIMIT 1
$$;

-- Whether a chain that a job waited for has been deleted, with the output that the job was to see.
CREATE FUNCTION /*schema*/lacks_blockers(job /*schema*/job) RETURNS boolean
LANGUAGE sql STABLE AS $$
  SELECT NOT job.runs_anyway AND job.blockers > (SELECT count(*) FROM /*schema*/blocker b WHERE b.job_id = job.id)
$$;

-- If these chains come back: what failed only through them, and so on. Not a job whose chain has been replaced by a live
-- one with its key, and of several with one key the newest; not one that lacks what it waited for.
CREATE FUNCTION /*schema*/failed_through(chain_ids uuid[]) RETURNS uuid[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
  jobs     uuid[] := '{}';
  chains   uuid[] := chain_ids;
  frontier uuid[] := chain_ids;
  more     uuid[];
BEGIN
  LOOP
    SELECT array_agg(f.id), array_agg(f.chain_id) INTO more, frontier FROM (
      SELECT DISTINCT ON (h.type_name, h.deduplication_key, CASE WHEN h.deduplication_key IS NULL THEN h.id END)
          j.id, j.chain_id
      FROM /*schema*/job j JOIN /*schema*/job h ON h.id = j.chain_id
      WHERE j.id IN (SELECT b.job_id FROM /*schema*/blocker b WHERE b.blocked_by_chain_id = ANY(frontier))
        AND j.status = 'failed' AND j.failure_reason = 'blocker' AND NOT j.chain_id = ANY(chains)
        AND NOT EXISTS (
          SELECT FROM /*schema*/blocker b WHERE b.job_id = j.id AND NOT b.blocked_by_chain_id = ANY(chains)
            AND (SELECT failed.chain_failed FROM /*schema*/job failed WHERE failed.id = b.blocked_by_chain_id))
        AND NOT /*schema*/lacks_blockers(j)
        AND NOT EXISTS (
          SELECT FROM /*schema*/job back WHERE back.id = ANY(chains) AND h.deduplication_key IS NOT NULL
            AND back.deduplication_key = h.deduplication_key AND back.type_name = h.type_name)
        AND /*schema*/key_holder(j.chain_id) IS NULL
      ORDER BY h.type_name, h.deduplication_key, CASE WHEN h.deduplication_key IS NULL THEN h.id END, h.id DESC) f;
    EXIT WHEN more IS NULL;
    jobs := jobs || more;
    chains := chains || frontier;
  END LOOP;
  RETURN ARRAY(SELECT unnest(jobs) ORDER BY 1);
END $$;

-- Lock what bringing chains back decides by: their keys; the jobs that failed; the headers of their chains and of all
-- that these jobs wait for; and the jobs that still wait for them (they run anyway when a blocker fails).
CREATE FUNCTION /*schema*/lock_to_retry(chain_ids uuid[], affected uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  jobs    uuid[];
  headers uuid[];
BEGIN
  SELECT coalesce(array_agg(c.job_id), '{}') || affected INTO jobs FROM /*schema*/current_jobs(chain_ids) c;
  SELECT array_agg(DISTINCT x.id) INTO headers FROM (
    SELECT j.chain_id AS id FROM /*schema*/job j WHERE j.id = ANY(jobs) AND j.status <> 'blocked'
    UNION ALL
    SELECT b.blocked_by_chain_id FROM /*schema*/blocker b WHERE b.job_id = ANY(jobs)) x;
  PERFORM /*schema*/lock_keys(array_agg(h.type_name), array_agg(h.deduplication_key))
    FROM /*schema*/job h
    WHERE h.id = ANY(headers) AND h.deduplication_key IS NOT NULL AND h.chain_ended_at IS NOT NULL;
  -- Failed jobs before the headers: nobody but who retries, cancels or deletes their chains locks these.
  PERFORM 1 FROM /*schema*/job j WHERE j.id = ANY(jobs) AND j.status <> 'blocked' AND j.chain_index > 0
    ORDER BY j.id FOR NO KEY UPDATE;
  PERFORM 1 FROM /*schema*/job h WHERE h.id = ANY(headers) ORDER BY h.id FOR NO KEY UPDATE;
  PERFORM 1 FROM /*schema*/job j WHERE j.id = ANY(jobs) AND j.status = 'blocked' ORDER BY j.id FOR NO KEY UPDATE;
END $$;

-- Why chains cannot be retried: all of it, if anything.
CREATE FUNCTION /*schema*/not_retryable(chain_ids uuid[], dependents uuid[])
RETURNS TABLE (chain_id uuid, problem text, other uuid)
LANGUAGE sql STABLE AS $$
  WITH job AS (
    SELECT j AS row, j.id, j.chain_id, j.status, j.runs_anyway, h.type_name, h.deduplication_key
    FROM /*schema*/current_jobs(chain_ids) c
      JOIN /*schema*/job j ON j.id = c.job_id JOIN /*schema*/job h ON h.id = c.chain_id
  )
  SELECT m, 'missing', NULL::uuid FROM /*schema*/missing_chains(chain_ids) m
  UNION ALL
  SELECT job.chain_id, 'not_failed', NULL FROM job WHERE job.status <> 'failed'
  UNION ALL
  SELECT job.chain_id, 'key_taken', /*schema*/key_holder(job.chain_id) FROM job
    WHERE /*schema*/key_holder(job.chain_id) IS NOT NULL
  UNION ALL
  SELECT twin.chain_id, 'key_taken', twin.newest FROM (
    SELECT job.chain_id, first_value(job.chain_id) OVER (
      PARTITION BY job.type_name, job.deduplication_key ORDER BY job.chain_id DESC) AS newest
    FROM job WHERE job.deduplication_key IS NOT NULL) twin WHERE twin.newest <> twin.chain_id
  UNION ALL
  SELECT job.chain_id, 'blocker_deleted', NULL FROM job WHERE /*schema*/lacks_blockers(job.row)
  UNION ALL
  SELECT job.chain_id, 'blocker_failed', b.blocked_by_chain_id
    FROM job JOIN /*schema*/blocker b ON b.job_id = job.id
    WHERE NOT job.runs_anyway AND NOT b.blocked_by_chain_id = ANY(chain_ids)
      AND NOT b.blocked_by_chain_id IN (SELECT d.chain_id FROM /*schema*/job d WHERE d.id = ANY(dependents))
      AND (SELECT h.chain_failed FROM /*schema*/job h WHERE h.id = b.blocked_by_chain_id)
$$;

-- Bring failed chains back, all or none: their last job is pending again, or blocked by what it waits for, and so is what
-- failed only through them. Where one cannot come back, only say why.
CREATE FUNCTION /*schema*/retry(chain_ids uuid[], at timestamptz)
RETURNS TABLE (job_id uuid, chain_id uuid, type_name text, change text, other uuid)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  dependents uuid[];
  affected   uuid[];
  locked     uuid[];
  targets    uuid[];
  coming     uuid[];
BEGIN
  -- Look, lock, and look again: what others did before the locks were held may have changed the picture.
  LOOP
    dependents := /*schema*/failed_through(chain_ids);
    affected := ARRAY(
      SELECT j.id FROM /*schema*/job j
      WHERE (j.status = 'blocked' OR (j.status = 'failed' AND j.failure_reason = 'blocker')) AND j.id IN (
        SELECT b.job_id FROM /*schema*/blocker b WHERE b.blocked_by_chain_id = ANY(
          chain_ids || ARRAY(SELECT d.chain_id FROM /*schema*/job d WHERE d.id = ANY(dependents))))
      ORDER BY j.id);
    EXIT WHEN locked = affected;
    PERFORM /*schema*/lock_to_retry(chain_ids, affected);
    locked := affected;
  END LOOP;

  SELECT coalesce(array_agg(c.job_id), '{}') INTO targets FROM /*schema*/current_jobs(chain_ids) c;
  IF current_setting('transaction_isolation') = 'repeatable read' AND EXISTS (
      SELECT FROM /*schema*/job j JOIN /*schema*/job h ON h.id = j.chain_id
      WHERE j.id = ANY(targets || dependents) AND h.deduplication_key IS NOT NULL) THEN
    RETURN QUERY SELECT NULL::uuid, chain_ids[1], NULL::text, 'isolation', NULL::uuid;
    RETURN;
  END IF;
  RETURN QUERY SELECT NULL::uuid, n.chain_id, NULL::text, n.problem, n.other
    FROM /*schema*/not_retryable(chain_ids, dependents) n;
  IF FOUND THEN
    RETURN;
  END IF;

  coming := ARRAY(SELECT j.chain_id FROM /*schema*/job j WHERE j.id = ANY(targets || dependents));
  UPDATE /*schema*/job h SET chain_ended_at = NULL, chain_failed = false WHERE h.id = ANY(coming);
  UPDATE /*schema*/job j SET failures = 0, transients = 0, crashes = 0, cancel_requested_at = NULL, scheduled_at = at
    WHERE j.id = ANY(targets);
  WITH edge AS MATERIALIZED (
    SELECT b.id, /*schema*/still_open(b.id) AS open FROM unnest(targets || dependents) b(id)
  ) UPDATE /*schema*/job j SET
      status = CASE WHEN edge.open > 0 THEN 'blocked' ELSE 'pending' END, open_blockers = edge.open,
      failure_reason = NULL, ended_at = NULL, completed_by = NULL, deferred = false
    FROM edge WHERE j.id = edge.id;
  UPDATE /*schema*/job j SET open_blockers = /*schema*/still_open(j.id)
    WHERE j.id = ANY(affected) AND j.status = 'blocked';
  RETURN QUERY SELECT j.id, j.chain_id, j.type_name, CASE j.status WHEN 'blocked' THEN 'blocked' ELSE 'retried' END,
      NULL::uuid
    FROM /*schema*/job j WHERE j.id = ANY(targets || dependents) ORDER BY j.id;
END $$;

-- Delete whole chains, unless an unfinished job elsewhere waits for one of them; then only say which.
CREATE FUNCTION /*schema*/delete_chains(chain_ids uuid[], with_blockers boolean)
RETURNS TABLE (chain_id uuid, job_id uuid, change text)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  doomed uuid[] := chain_ids;
  locked uuid[];
  one    uuid;
BEGIN
  -- Nobody may go on with a chain, or come to wait for it, meanwhile. One that goes on may come to wait for others.
  WHILE with_blockers LOOP
    doomed := /*schema*/blockers_of(chain_ids) || chain_ids;
    EXIT WHEN doomed = locked;
    FOREACH one IN ARRAY doomed LOOP
      PERFORM /*schema*/lock_current(ARRAY[one]);
      PERFORM 1 FROM /*schema*/job h WHERE h.id = one FOR UPDATE;
    END LOOP;
    locked := doomed;
  END LOOP;
  PERFORM /*schema*/lock_current(doomed);
  PERFORM 1 FROM /*schema*/job h WHERE h.id = ANY(doomed) AND h.chain_index = 0 ORDER BY h.id FOR UPDATE;
  doomed := ARRAY(SELECT h.id FROM /*schema*/job h WHERE h.id = ANY(doomed) AND h.chain_index = 0);

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
  DELETE FROM /*schema*/blocker b WHERE b.job_id IN (SELECT * FROM /*schema*/jobs_of(doomed));
  RETURN QUERY
    WITH gone AS (
      DELETE FROM /*schema*/job j WHERE j.id IN (SELECT * FROM /*schema*/jobs_of(doomed)) RETURNING j.chain_id, j.id
    ) SELECT gone.chain_id, gone.id, 'deleted' FROM gone;
END $$;
