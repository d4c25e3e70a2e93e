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
    -- By an array, and with IS TRUE: else the planner, which knows nothing of how many there are, may read all that is
    -- blocked, by the index of that.
    PERFORM 1 FROM /*schema*/job j
      WHERE (j.status = 'blocked') IS TRUE
        AND j.id = ANY(ARRAY(SELECT b.job_id FROM /*schema*/blocker b WHERE b.blocked_by_chain_id = ANY(frontier)))
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
        WHERE (j.status = 'blocked') IS TRUE
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
      RETURNING j.id, j.chain_id, j.chain_index, j.type_name, j.status, j.deferred
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
      change := CASE WHEN changed.status = 'failed' THEN 'failed' WHEN changed.deferred THEN 'scheduled' ELSE 'unblocked' END;
      reason := CASE changed.status WHEN 'failed' THEN 'blocker' END;
      RETURN NEXT;
    END LOOP;
    SELECT coalesce(array_agg(h.id ORDER BY h.id), '{}') INTO frontier
      FROM /*schema*/job h WHERE h.id = ANY(failing) AND h.has_dependents;
  END LOOP;
END $$;
