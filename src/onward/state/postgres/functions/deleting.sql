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
