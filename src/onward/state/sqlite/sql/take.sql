-- Claim the best pending jobs of the types given, as many as there are free slots.
-- One ordered range of the index per claim. The sorter keeps :limit rows and leaves a range at the first row that is
-- worse than all of them, so that at most claims × limit index entries are read, whatever the backlog.
-- CROSS JOIN and INDEXED BY: without statistics the planner may start from the wrong end.
-- The clock is read here and not by the caller, because the statement may have waited for the write lock.
WITH /*include fragments/unpaused*/
/*include fragments/claim*/
FROM (
  SELECT pending.rowid AS place, claim.lease
  FROM claim CROSS JOIN /*schema*/job pending INDEXED BY /*schema*/job_pending
  WHERE pending.type_name = claim.type_name AND pending.payload_version = claim.payload_version
    AND pending.status = 'pending' AND pending.deferred = 0
    AND (pending.limit_key IS NULL OR pending.admitted_after = pending.attempt)
  ORDER BY pending.rank, pending.scheduled_at, pending.id
  LIMIT :limit
) AS best
WHERE job.rowid = best.place
RETURNING
  /*include fragments/taken_columns*/
