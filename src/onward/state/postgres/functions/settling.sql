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
  UPDATE /*schema*/job job SET
    /*include fragments/completed*/,
    progress = coalesce(progressed, job.progress),
    progress_note = CASE WHEN progressed IS NULL THEN job.progress_note ELSE noted END
  FROM (SELECT 'continue' AS kind, NULL::json AS output, completer AS completed_by, at) o
  WHERE job.id = settling AND job.attempt = its_attempt AND job.leased_by IS NOT DISTINCT FROM its_holder
    AND job.ended_at IS NULL
  RETURNING job.id, job.chain_id, job.type_name, job.status, job.failure_reason INTO settled;
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
