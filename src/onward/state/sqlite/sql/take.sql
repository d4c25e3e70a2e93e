-- Claim the best pending jobs of the types given, as many as there are free slots.
-- One ordered range of the index per claim. The sorter keeps :limit rows and leaves a range at the first row that is
-- worse than all of them, so that at most claims × limit index entries are read, whatever the backlog.
-- CROSS JOIN and INDEXED BY: without statistics the planner may start from the wrong end.
-- The clock is read here and not by the caller, because the statement may have waited for the write lock.
WITH given AS MATERIALIZED (
  SELECT value FROM json_each(:claims)
), claim AS MATERIALIZED (
  SELECT json_extract(value, '$[0]') AS type_name, json_extract(value, '$[1]') AS payload_version,
    json_extract(value, '$[2]') AS lease
  FROM given
  WHERE json_extract(value, '$[0]') NOT IN (SELECT type_name FROM /*schema*/paused_type)
)
UPDATE /*schema*/job AS job SET
  status = 'running',
  attempt = job.attempt + 1,
  ended_at = NULL,
  leased_by = :worker,
  leased_until = coalesce(:now, CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)) + best.lease
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
