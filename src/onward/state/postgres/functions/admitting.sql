-- Types and versions of which jobs have a place, while none of the workers that live takes them: what others of a limit could
-- have is given up, and they get no other until somebody serves them. Where no worker is known nobody else would want it.
CREATE FUNCTION /*schema*/look_after_unserved(at timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  served text[];
BEGIN
  served := ARRAY(
    SELECT DISTINCT taken.name || '/' || payload.version
    FROM /*schema*/worker w
      -- By CASE: whatever a hand has written there.
      CROSS JOIN LATERAL json_each(CASE WHEN json_typeof(w.types) = 'object' THEN w.types ELSE '{}' END) taken(name, versions)
      CROSS JOIN LATERAL json_array_elements_text(
        CASE WHEN json_typeof(taken.versions) = 'array' THEN taken.versions ELSE '[]' END) payload(version)
    WHERE w.alive_until >= at AND w.seen_at <= at + interval '60 seconds' AND NOT w.is_stopping);
  DELETE FROM /*schema*/unserved_type u
    WHERE served = '{}' OR u.type_name || '/' || u.payload_version = ANY(served);
  IF served <> '{}' THEN
    INSERT INTO /*schema*/unserved_type (type_name, payload_version)
      SELECT j.type_name, j.payload_version FROM /*schema*/job j
      WHERE j.limit_key IS NOT NULL
        AND (j.status = 'running' OR j.status = 'pending' AND NOT j.deferred AND j.admitted_after = j.attempt)
        AND j.status = 'pending' AND NOT j.type_name || '/' || j.payload_version = ANY(served)
      UNION
      SELECT j.type_name, j.payload_version FROM /*schema*/limit_place p JOIN /*schema*/job j ON j.id = p.job_id
      WHERE j.status = 'pending' AND NOT j.type_name || '/' || j.payload_version = ANY(served)
      ON CONFLICT DO NOTHING;
    IF FOUND THEN  -- others like them may be the next to get these places
      UPDATE /*schema*/limit_sweep SET swept_at = at - interval '29 seconds';
    END IF;
  END IF;
EXCEPTION WHEN undefined_table OR insufficient_privilege OR lock_not_available OR data_exception THEN
  NULL;  -- the rows of workers are for people to look at: no reason to let nobody in
END $$;

-- What there is to look at: keys that were woken, and the next of ranges; all keys, if that is due or asked for. `more`:
-- there is more than was wanted.
CREATE FUNCTION /*schema*/woken_keys(most integer, after bigint, sweep boolean, at timestamptz,
  OUT keys text[], OUT reached bigint, OUT more boolean, OUT swept boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  popped integer;
  firsts text[];
  untils text[];
  batch  text[];
BEGIN
  UPDATE /*schema*/limit_sweep s SET swept_at = at
    WHERE s.ctid = ANY(ARRAY(
      SELECT x.ctid FROM /*schema*/limit_sweep x
      WHERE sweep OR x.swept_at < at - interval '30 seconds' OR x.swept_at > at + interval '30 seconds' FOR UPDATE SKIP LOCKED));
  swept := FOUND;
  IF swept THEN
    INSERT INTO /*schema*/limit_wake (key, is_range) VALUES ('', true);
    PERFORM /*schema*/look_after_unserved(at);
    -- Also what was admitted just when its type was paused.
    PERFORM /*schema*/give_up_places('{}', ARRAY(SELECT p.type_name FROM /*schema*/paused_type p),
      ARRAY(SELECT u.type_name || '/' || u.payload_version FROM /*schema*/unserved_type u));
    DELETE FROM /*schema*/limit_place p WHERE NOT EXISTS (
      SELECT FROM /*schema*/job j
      WHERE j.id = p.job_id AND (j.status = 'running' OR j.status = 'pending' AND NOT j.deferred) OFFSET 0);
  END IF;
  -- By place: a wake is never changed.
  WITH woken AS (
    DELETE FROM /*schema*/limit_wake w WHERE w.ctid = ANY(ARRAY(
      SELECT x.ctid FROM /*schema*/limit_wake x WHERE x.id > after ORDER BY x.id LIMIT most FOR UPDATE SKIP LOCKED))
    RETURNING w.id, w.key, w.is_range, w.until
  )
  SELECT array_agg(DISTINCT w.key) FILTER (WHERE NOT w.is_range), max(w.id), count(*),
    array_agg(w.key ORDER BY w.id) FILTER (WHERE w.is_range), array_agg(w.until ORDER BY w.id) FILTER (WHERE w.is_range)
    INTO keys, reached, popped, firsts, untils FROM woken w;
  more := popped = most;
  FOR n IN 1 .. coalesce(cardinality(firsts), 0) LOOP
    batch := ARRAY(SELECT * FROM /*schema*/held_keys(firsts[n], untils[n], 200));
    keys := keys || batch;
    IF cardinality(batch) = 200 THEN
      INSERT INTO /*schema*/limit_wake (key, is_range, until) VALUES (batch[200], true, untils[n]);
      more := true;
    END IF;
  END LOOP;
END $$;

-- Give free places to held jobs: of keys that were woken, and of those whose next slot has come. A transaction of its own,
-- whose loss the next sweep makes good. Says which types have jobs to take now, how far it has come with the wakes, and when
-- the next slot comes, or a look is worth it because somebody has locked a job that could have a place; and whether there are
-- rates. `past`: pass over keys that somebody has locked, which are looked at again later, instead of waiting for them.
CREATE FUNCTION /*schema*/admit(most integer, after bigint, sweep boolean, given timestamptz, past boolean DEFAULT false)
RETURNS TABLE (type_name text, admitted bigint, reached bigint, next_in double precision, is_paced boolean)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  at       timestamptz := coalesce(given, clock_timestamp());
  keys     text[];
  locked   text[];
  paused   text[];
  unserved text[];
  again    bigint;
  further  bigint;
  more     boolean;
  swept    boolean;
  types    text[];
  counts   bigint[];
  upto     bigint;
  passing  boolean;  -- whether there are jobs with several limits, on their way: as a rule there are none
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RETURN QUERY SELECT 'isolation', NULL::bigint, NULL::bigint, NULL::double precision, NULL::boolean;
    RETURN;
  END IF;
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM pg_advisory_xact_lock_shared(/*schema*/limit_lock());
  SELECT w.keys, w.reached, w.more, w.swept INTO keys, upto, more, swept FROM /*schema*/woken_keys(most, after, sweep, at) w;
  passing := EXISTS (SELECT FROM /*schema*/limit_place);
  IF cardinality(keys) > 0 THEN
    -- Only those that have held jobs and, as far as can be seen without a lock, a place for one: who frees a place, or comes
    -- to be held, later than this sees has a wake of his own. OFFSET: a look each, whatever is thought of how many are held.
    keys := ARRAY(
      SELECT w.key FROM (SELECT DISTINCT k COLLATE "C" AS key FROM unnest(keys) k) w
        LEFT JOIN /*schema*/limit_rule r ON r.name = split_part(w.key, '/', 1)
      WHERE EXISTS (SELECT FROM /*schema*/job WHERE /*include fragments/held*/ AND limit_key = w.key OFFSET 0)
        AND (r.places IS NULL
          OR (SELECT count(*) FROM /*schema*/job WHERE /*include fragments/placed*/ AND limit_key = w.key)
            + CASE WHEN passing THEN (SELECT count(*) FROM /*schema*/limit_place p WHERE p.key = w.key) ELSE 0 END < r.places)
      ORDER BY w.key);
    INSERT INTO /*schema*/limit_key (key, name)
      SELECT k, split_part(k, '/', 1) FROM unnest(keys) WITH ORDINALITY w(k, place)
      WHERE NOT EXISTS (SELECT FROM /*schema*/limit_key l WHERE l.key = k) ORDER BY w.place ON CONFLICT DO NOTHING;
    -- A look into the index for each: ANY would compare each key of the table with all of them.
    IF past THEN
      locked := ARRAY(
        SELECT l.key FROM unnest(keys) w(key) JOIN /*schema*/limit_key l ON l.key = w.key
        ORDER BY l.key FOR NO KEY UPDATE OF l SKIP LOCKED);
    ELSE
      locked := ARRAY(
        SELECT l.key FROM unnest(keys) w(key) JOIN /*schema*/limit_key l ON l.key = w.key ORDER BY l.key FOR NO KEY UPDATE OF l);
    END IF;
    IF cardinality(locked) < cardinality(keys) THEN  -- one was passed over, or was idle, and cleared away at this moment
      INSERT INTO /*schema*/limit_wake (key) SELECT k FROM unnest(keys) k WHERE NOT k = ANY(locked);
    END IF;
  END IF;
  -- The wait for the locks took time.
  at := coalesce(given, clock_timestamp());
  locked := coalesce(locked, '{}') || ARRAY(
    SELECT l.key FROM /*schema*/limit_key l WHERE l.wake_at <= at AND NOT l.key = ANY(coalesce(locked, '{}'))
    ORDER BY l.wake_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED);
  -- What is about to be taken starts now, not when it was let in.
  locked := locked || ARRAY(
    SELECT l.key FROM /*schema*/limit_key l WHERE l.stale_at <= at AND NOT l.key = ANY(locked)
    ORDER BY l.stale_at LIMIT most FOR NO KEY UPDATE SKIP LOCKED);
  IF cardinality(locked) > 0 THEN
    paused := ARRAY(SELECT p.type_name FROM /*schema*/paused_type p);
    unserved := ARRAY(SELECT u.type_name || '/' || u.payload_version FROM /*schema*/unserved_type u);
    passing := EXISTS (SELECT FROM /*schema*/limit_place);  -- once more: before the locks others could add to it
    -- A new statement: what the others admitted who had the locks is seen.
    WITH room AS MATERIALIZED (
      SELECT k.key, k.wake_at, k.stale_at, r.every, r.burst, p.tat, u.waiting, r.places - u.placed AS places,
        r.burst - ceil(round((extract(epoch FROM p.tat - at) / r.every)::numeric, 6)) AS slots
      FROM unnest(locked) w(key) JOIN /*schema*/limit_key k ON k.key = w.key
        -- A hand may have written anything there: under a rule that is none nobody is let in.
        LEFT JOIN LATERAL (
          SELECT CASE WHEN s.is_sound THEN l.places ELSE 0 END AS places, CASE WHEN s.is_sound THEN l.every END AS every,
            CASE WHEN s.is_sound THEN l.burst ELSE 1 END AS burst
          FROM /*schema*/limit_rule l CROSS JOIN LATERAL (
            SELECT l.burst >= 1 AND (l.every IS NULL OR l.every BETWEEN 1e-6 AND 4e10 AND l.every * l.burst <= 4e10) AS is_sound) s
          WHERE l.name = k.name) r ON true
        CROSS JOIN LATERAL (
          SELECT count(*) AS placed, count(*) FILTER (WHERE status = 'pending') AS waiting
          FROM (
            SELECT status FROM /*schema*/job WHERE /*include fragments/placed*/ AND limit_key = k.key
            UNION ALL
            SELECT j.status FROM /*schema*/limit_place p JOIN /*schema*/job j ON j.id = p.job_id WHERE passing AND p.key = k.key
          ) has_place) u
        -- What has not started yet counts as if it started now: workers may have been away.
        CROSS JOIN LATERAL (
          SELECT CASE WHEN r.every IS NOT NULL
            -- Not more than a burst ahead, whatever the clock was.
            THEN greatest(least(coalesce(k.tat, at), at + make_interval(secs => r.every * r.burst)),
              at + make_interval(secs => r.every * u.waiting)) END AS tat) p
    ), chosen AS MATERIALIZED (
      SELECT room.*, ARRAY(
        SELECT j.id FROM /*schema*/job j
        WHERE j.status = 'pending' AND NOT j.deferred AND j.limit_key IS NOT NULL
          AND j.admitted_after IS DISTINCT FROM j.attempt AND j.limit_key = room.key AND NOT j.type_name = ANY(paused)
          AND (unserved = '{}' OR NOT j.type_name || '/' || j.payload_version = ANY(unserved))
        ORDER BY j.rank, j.scheduled_at, j.id LIMIT greatest(least(room.places, room.slots, 1000), 0)
        FOR NO KEY UPDATE SKIP LOCKED) AS ids
      FROM room
    ), rest AS MATERIALIZED (
      -- Without a rate only where there are places left.
      SELECT c.*, CASE WHEN c.every IS NOT NULL OR coalesce(c.places, 2147483647) > cardinality(c.ids) THEN EXISTS (
        SELECT FROM /*schema*/job WHERE /*include fragments/held*/ AND limit_key = c.key AND NOT type_name = ANY(paused)
          AND (unserved = '{}' OR NOT type_name || '/' || payload_version = ANY(unserved))
        OFFSET cardinality(c.ids)) ELSE false END AS more
      FROM chosen c
    ), moved AS (
      -- As if it had come now: who has many places does not come before those who have one.
      -- By an array: the planner, which knows nothing of how many there are, might read the whole table for a join.
      UPDATE /*schema*/job j SET
        admitted_after = CASE WHEN j.limit_keys[array_position(j.limit_keys, j.limit_key) + 1] IS NULL
          THEN j.attempt ELSE j.admitted_after END,
        scheduled_at = CASE WHEN j.limit_keys[array_position(j.limit_keys, j.limit_key) + 1] IS NULL
          THEN greatest(j.scheduled_at, at) ELSE j.scheduled_at END,
        limit_key = coalesce(j.limit_keys[array_position(j.limit_keys, j.limit_key) + 1], j.limit_key)
      WHERE j.id = ANY(ARRAY(SELECT unnest(c.ids) FROM chosen c))
      RETURNING j.id, j.type_name, j.limit_keys[array_position(j.limit_keys, j.limit_key) - 1] AS key,
        CASE WHEN j.admitted_after IS DISTINCT FROM j.attempt THEN j.limit_key END AS next
    ), passed AS (
      INSERT INTO /*schema*/limit_place (key, job_id) SELECT m.key, m.id FROM moved m WHERE m.next IS NOT NULL
        ON CONFLICT DO NOTHING
    ), onward AS (
      INSERT INTO /*schema*/limit_wake (key) SELECT m.next FROM moved m WHERE m.next IS NOT NULL RETURNING key
    ), paced AS (
      UPDATE /*schema*/limit_key k SET
        tat = c.tat + make_interval(secs => c.every * cardinality(c.ids)),
        wake_at = CASE WHEN c.more AND c.slots <= cardinality(c.ids)
          THEN c.tat + make_interval(secs => c.every * (cardinality(c.ids) - c.burst + 1)) END,
        stale_at = CASE WHEN c.waiting + cardinality(c.ids) > 0 THEN at + make_interval(secs => c.every) END
      FROM rest c
      WHERE k.key = c.key AND (c.every IS NOT NULL OR c.wake_at IS NOT NULL OR c.stale_at IS NOT NULL)
    ), again AS (
      INSERT INTO /*schema*/limit_wake (key)
        SELECT c.key FROM rest c
        WHERE c.more AND cardinality(c.ids) < coalesce(least(c.places, c.slots), 2147483647)
      RETURNING key
    ), by_type AS (
      SELECT m.type_name, count(*) AS n FROM moved m WHERE m.next IS NULL GROUP BY m.type_name
    )
    SELECT array_agg(t.type_name), array_agg(t.n), (SELECT count(*) FROM again), (SELECT count(*) FROM onward)
      INTO types, counts, again, further FROM by_type t;
  END IF;
  IF swept THEN
    -- Keys that are idle. Last: who has deleted one waits for no other.
    DELETE FROM /*schema*/limit_key k WHERE k.key = ANY(ARRAY(
      SELECT x.key FROM /*schema*/limit_key x
      WHERE x.wake_at IS NULL AND (x.tat IS NULL OR x.tat < at)
        AND NOT EXISTS (SELECT FROM /*schema*/job WHERE /*include fragments/held*/ AND limit_key = x.key OFFSET 0)
        AND NOT EXISTS (SELECT FROM /*schema*/job WHERE /*include fragments/placed*/ AND limit_key = x.key OFFSET 0)
        AND NOT EXISTS (SELECT FROM /*schema*/limit_place p WHERE p.key = x.key OFFSET 0)
      LIMIT 1000 FOR UPDATE SKIP LOCKED));
  END IF;
  RETURN QUERY SELECT t.name, t.n, NULL::bigint, NULL::double precision, NULL::boolean FROM unnest(types, counts) t(name, n);
  RETURN QUERY SELECT NULL::text, NULL::bigint, upto, least(
    CASE WHEN further > 0 OR more THEN 0 WHEN again > 0 THEN 0.05 END,
    -- Not every place is given up by a worker, who knows: a client may cancel, complete or delete what has one.
    (SELECT 1 WHERE EXISTS (SELECT FROM /*schema*/job WHERE /*include fragments/held*/)),
    (SELECT extract(epoch FROM min(l.wake_at) - at)::double precision FROM /*schema*/limit_key l
     WHERE l.wake_at > '-infinity' AND l.wake_at < 'infinity')),
    EXISTS (SELECT FROM /*schema*/limit_rule r WHERE r.every IS NOT NULL);
END $$;
