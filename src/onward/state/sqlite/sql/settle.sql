-- Settle attempts. The fence is (id, attempt, holder); ids that do not come back are stale.
-- `given` is materialized so that json_each renders each element once, not once for every field read of it.
WITH given AS MATERIALIZED (
  SELECT value FROM json_each(:outcomes)
), outcome AS MATERIALIZED (
  SELECT
    json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt, json_extract(value, '$[2]') AS holder,
    json_extract(value, '$[3]') AS kind, json_extract(value, '$[4]') AS output, json_extract(value, '$[5]') AS errors,
    json_extract(value, '$[6]') AS reason, json_extract(value, '$[7]') AS scheduled_at,
    json_extract(value, '$[8]') AS failures, json_extract(value, '$[9]') AS transients,
    json_extract(value, '$[10]') AS crashes, json_extract(value, '$[11]') AS completed_by,
    json_extract(value, '$[12]') AS progress, json_extract(value, '$[13]') AS progress_note,
    json_extract(value, '$[14]') AS keep_place, json_extract(value, '$[15]') AS payload_version
  FROM given
)
UPDATE /*schema*/job AS job SET
  /*include fragments/settled*/,
  payload_version = coalesce(o.payload_version, job.payload_version),
  errors = coalesce(o.errors, job.errors),
  progress = coalesce(o.progress, job.progress),
  progress_note = CASE WHEN o.progress IS NULL THEN job.progress_note ELSE o.progress_note END,
  failure_reason = CASE
    WHEN o.kind IN ('requeue', 'continue') AND job.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE o.reason END,
  failures = job.failures + o.failures,
  transients = o.transients,
  crashes = o.crashes,
  scheduled_at = CASE
    WHEN o.kind <> 'requeue' THEN job.scheduled_at
    WHEN o.keep_place THEN min(job.scheduled_at, :now)
    ELSE o.scheduled_at END,
  deferred = o.kind = 'requeue' AND o.scheduled_at > :now,
  chain_ended_at = CASE
    WHEN job.chain_index = 0
      AND (o.kind IN ('complete', 'fail') OR job.cancel_requested_at IS NOT NULL)
    THEN :now END,
  chain_failed = job.chain_index = 0
    AND (o.kind = 'fail' OR (o.kind <> 'complete' AND job.cancel_requested_at IS NOT NULL))
FROM outcome AS o
WHERE job.id = o.id AND job.attempt = o.attempt AND job.leased_by IS o.holder
  AND job.ended_at IS NULL  -- nobody holds a job that has ended: without this, "no holder" would match it
RETURNING id, chain_id, chain_index, type_name, status, failure_reason, root_id, has_dependents IS NOT 0
