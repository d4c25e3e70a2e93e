-- Settle attempts: outcome, continuation, end of the chain and everything that waited for it, in one statement.
-- The fence is (id, attempt, holder); ids that do not come back are stale. No condition on status: the planner would
-- walk the index of running jobs instead of looking each one up.
WITH outcome AS MATERIALIZED (
  SELECT o.*, coalesce(:now::timestamptz, statement_timestamp()) AS at
  FROM unnest(
    :ids::uuid[], :attempts::integer[], :holders::text[], :kinds::text[], :outputs::text[], :versions::integer[], :errors::text[],
    :reasons::text[], :delays::double precision[], :ats::timestamptz[], :failures::integer[], :transients::integer[],
    :crashes::integer[], :keep_places::boolean[], :progress::double precision[], :progress_notes::text[], :completed_by::text[],
    :next_ids::uuid[], :next_type_names::text[], :next_versions::integer[], :next_ranks::integer[], :next_limit_keys::text[], :next_inputs::text[],
    :next_delays::double precision[], :next_ats::timestamptz[]
  ) AS o(id, attempt, holder, kind, output, payload_version, errors, reason, delay, scheduled_at, failures, transients, crashes,
         keep_place, progress, progress_note, completed_by, next_id, next_type_name, next_version, next_rank, next_limit_key,
         next_input, next_delay, next_scheduled_at)
), settled AS (
  UPDATE /*schema*/job job SET
    status = CASE
      WHEN o.kind = 'complete' THEN 'completed'
      -- An attempt that was to be cancelled neither comes back nor goes on.
      WHEN o.kind = 'fail' OR job.cancel_requested_at IS NOT NULL THEN 'failed'
      WHEN o.kind = 'continue' THEN 'completed' ELSE 'pending' END,
    output = o.output::json,
    payload_version = coalesce(o.payload_version, job.payload_version),
    errors = coalesce(o.errors::json, job.errors),
    progress = coalesce(o.progress, job.progress),
    progress_note = CASE WHEN o.progress IS NULL THEN job.progress_note ELSE o.progress_note END,
    failure_reason = CASE
      WHEN o.kind IN ('retry', 'continue') AND job.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE o.reason END,
    failures = least(job.failures::bigint + o.failures, 2147483647)::integer,
    transients = o.transients,
    crashes = o.crashes,
    scheduled_at = CASE
      WHEN o.kind <> 'retry' THEN job.scheduled_at
      WHEN o.keep_place THEN least(job.scheduled_at, o.at)
      ELSE coalesce(o.scheduled_at, o.at + make_interval(secs => o.delay)) END,
    deferred = o.kind = 'retry' AND coalesce(o.scheduled_at, o.at + make_interval(secs => o.delay)) > o.at,
    leased_by = NULL,
    leased_until = NULL,
    open_blockers = 0,
    ended_at = CASE WHEN o.kind <> 'retry' OR job.cancel_requested_at IS NOT NULL THEN o.at END,
    completed_by = CASE
      WHEN o.kind = 'complete' OR (o.kind = 'continue' AND job.cancel_requested_at IS NULL) THEN o.completed_by END,
    chain_ended_at = CASE
      WHEN job.chain_index = 0
        AND (o.kind IN ('complete', 'fail') OR job.cancel_requested_at IS NOT NULL)
      THEN o.at END,
    chain_failed = job.chain_index = 0
      AND (o.kind = 'fail' OR (o.kind <> 'complete' AND job.cancel_requested_at IS NOT NULL))
  FROM outcome o
  WHERE job.id = o.id AND job.attempt = o.attempt AND job.leased_by IS NOT DISTINCT FROM o.holder
    AND job.ended_at IS NULL  -- nobody holds a job that has ended: without this, "no holder" would match it
  RETURNING job.id, job.chain_id, job.chain_index, job.type_name, job.status, job.root_id, job.has_dependents,
    job.failure_reason, o.kind, o.at, o.next_id, o.next_type_name, o.next_version, o.next_rank, o.next_limit_key,
    o.next_input, o.next_delay, o.next_scheduled_at
), continued AS (
  INSERT INTO /*schema*/job (
    id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, limit_key, input, created_at,
    scheduled_at, origin_id, root_id
  )
  SELECT s.next_id, s.chain_id, s.chain_index + 1, s.next_type_name, s.next_version, 'pending', s.next_rank,
    coalesce(s.next_scheduled_at, s.at + make_interval(secs => s.next_delay)) > s.at, s.next_limit_key,
    s.next_input::json, s.at, coalesce(s.next_scheduled_at, s.at + make_interval(secs => s.next_delay)), s.id, s.root_id
  FROM settled s
  WHERE s.next_id IS NOT NULL AND s.status = 'completed'
), header AS (
  UPDATE /*schema*/job job SET chain_ended_at = s.at, chain_failed = s.status = 'failed'
  FROM settled s
  WHERE s.chain_index > 0 AND job.id = s.chain_id AND (s.kind = 'complete' OR s.status = 'failed')
  RETURNING job.id, job.has_dependents
), ended AS (
  SELECT array_agg(e.id ORDER BY e.id) AS ids FROM (
    SELECT id FROM settled
      WHERE has_dependents AND chain_index = 0 AND (kind = 'complete' OR status = 'failed')
    UNION ALL
    SELECT id FROM header WHERE has_dependents
  ) e
)
SELECT id, chain_id, type_name, status, 'settled' AS change, failure_reason AS reason FROM settled
UNION ALL
SELECT c.job_id, c.chain_id, c.type_name, NULL, c.change, c.reason
FROM ended, /*schema*/chains_ended(ended.ids, coalesce(:now::timestamptz, statement_timestamp())) c
WHERE ended.ids IS NOT NULL
