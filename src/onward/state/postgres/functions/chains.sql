-- Of the chains somebody names, those that do not exist.
CREATE FUNCTION /*schema*/missing_chains(chain_ids uuid[]) RETURNS SETOF uuid
LANGUAGE sql STABLE AS $$
  SELECT DISTINCT c FROM unnest(chain_ids) c
  WHERE NOT EXISTS (SELECT FROM /*schema*/job h WHERE h.id = c AND h.chain_index = 0)
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

-- How many of the chains that a job waits for have not ended. Each is looked up by itself: as a join, and with statistics
-- from before most of them began, the planner goes through all live chains for each job.
CREATE FUNCTION /*schema*/still_open(waiting uuid) RETURNS integer
LANGUAGE sql STABLE AS $$
  SELECT count(*)::integer FROM /*schema*/blocker b
  WHERE b.job_id = waiting
    AND (SELECT h.chain_ended_at IS NULL FROM /*schema*/job h WHERE h.id = b.blocked_by_chain_id)
$$;
