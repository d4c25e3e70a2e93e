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
