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
      failure_reason = NULL, ended_at = NULL, completed_by = NULL, deferred = false,
      admitted_after = NULL  -- others have the place that was given for an attempt that never began
    FROM edge WHERE j.id = edge.id;
  UPDATE /*schema*/job j SET open_blockers = /*schema*/still_open(j.id)
    WHERE j.id = ANY(affected) AND j.status = 'blocked';
  RETURN QUERY SELECT j.id, j.chain_id, j.type_name, CASE j.status WHEN 'blocked' THEN 'blocked' ELSE 'retried' END,
      NULL::uuid
    FROM /*schema*/job j WHERE j.id = ANY(targets || dependents) ORDER BY j.id;
END $$;
