-- Failed jobs are pending again, or blocked by what they still wait for. Those that were asked for begin anew; those that
-- failed only through them wait as they did.
WITH given AS MATERIALIZED (
  SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS open, json_extract(value, '$[2]') AS anew
  FROM json_each(:jobs)
)
UPDATE /*schema*/job AS job SET
  status = CASE WHEN given.open > 0 THEN 'blocked' ELSE 'pending' END,
  open_blockers = given.open,
  failure_reason = NULL, ended_at = NULL, completed_by = NULL, deferred = 0,
  admitted_after = NULL,  -- others have the place that was given for an attempt that never began
  failures = CASE WHEN given.anew THEN 0 ELSE job.failures END,
  transients = CASE WHEN given.anew THEN 0 ELSE job.transients END,
  crashes = CASE WHEN given.anew THEN 0 ELSE job.crashes END,
  cancel_requested_at = CASE WHEN given.anew THEN NULL ELSE job.cancel_requested_at END,
  scheduled_at = CASE WHEN given.anew THEN :now ELSE job.scheduled_at END
FROM given
WHERE job.id = given.id
