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
