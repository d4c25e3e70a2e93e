-- Neither of these two triggers has a search_path of its own, which every row would pay for: what they call is named with
-- its schema, and for what they compare the server finds its own operators first.

-- A job with a limit is new. The keys of one with several come as one text.
CREATE FUNCTION /*schema*/begin_limit() RETURNS trigger
LANGUAGE plpgsql /*calls nothing*/ AS $$
DECLARE
  first text := NEW.limit_key;
BEGIN
  IF substr(first, 1, 1) = chr(31) THEN
    UPDATE /*schema*/job j SET limit_keys = k.all_keys, limit_key = k.all_keys[1]
      FROM (SELECT ARRAY(SELECT json_array_elements_text(substr(NEW.limit_key, 2)::json)) AS all_keys) k
      WHERE j.id = NEW.id
      RETURNING j.limit_key INTO first;
  END IF;
  IF NEW.status = 'pending' AND NOT NEW.deferred THEN
    INSERT INTO /*schema*/limit_wake (key) VALUES (first);
  END IF;
  RETURN NULL;
END $$;

-- Says that the jobs of a key are worth a look: one waits for a place, or one has lost its own. One that has several limits
-- gives up what it has come by, and begins anew.
CREATE FUNCTION /*schema*/wake_limit() RETURNS trigger
LANGUAGE plpgsql /*calls nothing*/ AS $$
DECLARE
  had_place boolean;
  was_held  boolean;
  has_place boolean := false;
  is_held   boolean := false;
  is_moved  boolean := true;
BEGIN
  had_place := OLD.status = 'running'
    OR OLD.status = 'pending' AND NOT OLD.deferred AND OLD.admitted_after IS NOT DISTINCT FROM OLD.attempt;
  was_held := OLD.status = 'pending' AND NOT OLD.deferred AND NOT had_place;
  IF TG_OP = 'UPDATE' THEN
    has_place := NEW.status = 'pending' AND NOT NEW.deferred AND NEW.admitted_after IS NOT DISTINCT FROM NEW.attempt;
    is_held := NEW.status = 'pending' AND NOT NEW.deferred AND NOT has_place;
    is_moved := NEW.status <> OLD.status OR NEW.deferred <> OLD.deferred;
  END IF;
  IF had_place AND NOT has_place OR is_held AND NOT was_held OR OLD.limit_keys IS NOT NULL AND is_moved THEN
    IF OLD.limit_keys IS NULL THEN
      INSERT INTO /*schema*/limit_wake (key) VALUES (coalesce(NEW.limit_key, OLD.limit_key));
    ELSE
      DELETE FROM /*schema*/limit_place p WHERE p.job_id = OLD.id;
      INSERT INTO /*schema*/limit_wake (key) SELECT unnest(OLD.limit_keys);
      UPDATE /*schema*/job j SET limit_key = j.limit_keys[1]
        WHERE j.id = NEW.id AND NEW.status = 'pending' AND j.limit_key <> j.limit_keys[1];
    END IF;
  END IF;
  RETURN NULL;
END $$;

-- After, not before: a job is not locked once more for it. Jobs without a limit pay for a look at one column, takes for a look
-- at two: what WHEN says is made ready anew for every statement, and is short. What has ended gave its place up then. Who gives a place changes none of these columns,
-- and who takes one away names one of them.
CREATE TRIGGER job_held_new AFTER INSERT ON /*schema*/job FOR EACH ROW
  WHEN (NEW.limit_key IS NOT NULL) EXECUTE FUNCTION /*schema*/begin_limit();
CREATE TRIGGER job_held_again AFTER UPDATE OF status, deferred, attempt ON /*schema*/job FOR EACH ROW
  WHEN (NEW.limit_key IS NOT NULL AND NEW.status <> 'running') EXECUTE FUNCTION /*schema*/wake_limit();
CREATE TRIGGER job_place_gone AFTER DELETE ON /*schema*/job FOR EACH ROW
  WHEN (OLD.limit_key IS NOT NULL AND OLD.status IN ('pending', 'running')) EXECUTE FUNCTION /*schema*/wake_limit();

-- Held by whoever admits, alone by whoever changes the rules: what was admitted by the old ones is seen.
CREATE FUNCTION /*schema*/limit_lock() RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$ SELECT hashtextextended('/*schema*/limit_rule', 0) $$;

-- Keys of held jobs from one on, in order, batch by leaps through the index.
CREATE FUNCTION /*schema*/held_keys(first text, until text, most integer) RETURNS SETOF text
LANGUAGE sql STABLE AS $$
  WITH RECURSIVE leap AS (
    (SELECT limit_key FROM /*schema*/job
     WHERE /*include fragments/held*/ AND limit_key >= first COLLATE "C" AND (until IS NULL OR limit_key < until COLLATE "C")
     ORDER BY limit_key LIMIT 1)
    UNION ALL
    SELECT (SELECT j.limit_key FROM /*schema*/job j
            WHERE j.status = 'pending' AND NOT j.deferred AND j.limit_key IS NOT NULL
              AND j.admitted_after IS DISTINCT FROM j.attempt AND j.limit_key > leap.limit_key
              AND (until IS NULL OR j.limit_key < until COLLATE "C")
            ORDER BY j.limit_key LIMIT 1)
    FROM leap WHERE leap.limit_key IS NOT NULL
  )
  SELECT limit_key FROM leap WHERE limit_key IS NOT NULL LIMIT most
$$;
