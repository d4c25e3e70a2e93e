-- Failed jobs are pending again, or blocked by what they still wait for.
WITH wanted AS MATERIALIZED (
  SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS open FROM json_each(:jobs)
)
UPDATE /*schema*/job AS job SET
  status = CASE WHEN wanted.open > 0 THEN 'blocked' ELSE 'pending' END,
  open_blockers = wanted.open,
  failures = 0, transients = 0, crashes = 0, failure_reason = NULL, ended_at = NULL, cancel_requested_at = NULL,
  scheduled_at = :now, deferred = 0, completed_by = NULL
FROM wanted
WHERE job.id = wanted.id
