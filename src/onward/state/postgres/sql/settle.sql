-- Settle attempts: outcome, continuation, end of the chain and everything that waited for it, in one statement.
-- The fence is (id, attempt, holder); ids that do not come back are stale. No condition on status: the planner would
-- walk the index of running jobs instead of looking each one up.
WITH outcome AS MATERIALIZED (
  SELECT o.*, coalesce(:now::timestamptz, statement_timestamp()) AS at
  FROM unnest(
    /*include fragments/patient_ids*/,
    :attempts::integer[], :holders::text[], :kinds::text[], :outputs::text[], :versions::integer[], :errors::text[],
    :reasons::text[], :delays::double precision[], :ats::timestamptz[], :failures::integer[], :transients::integer[],
    :crashes::integer[], :keep_places::boolean[], :progress::double precision[], :progress_notes::text[], :completed_by::text[],
    :next_ids::uuid[], :next_type_names::text[], :next_versions::integer[], :next_ranks::integer[], :next_limit_keys::text[], :next_inputs::text[],
    :next_delays::double precision[], :next_ats::timestamptz[], :next_metas::text[]
  ) AS o(id, attempt, holder, kind, output, payload_version, errors, reason, delay, scheduled_at, failures, transients, crashes,
         keep_place, progress, progress_note, completed_by, next_id, next_type_name, next_version, next_rank, next_limit_key,
         next_input, next_delay, next_scheduled_at, next_meta)
), settled AS (
  UPDATE /*schema*/job job SET
    /*include fragments/settled*/,
    payload_version = coalesce(o.payload_version, job.payload_version),
    errors = coalesce(o.errors::json, job.errors),
    progress = coalesce(o.progress, job.progress),
    progress_note = CASE WHEN o.progress IS NULL THEN job.progress_note ELSE o.progress_note END,
    failure_reason = CASE
      WHEN o.kind IN ('requeue', 'continue') AND job.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE o.reason END,
    failures = least(job.failures::bigint + o.failures, 2147483647)::integer,
    transients = o.transients,
    crashes = o.crashes,
    scheduled_at = CASE
      WHEN o.kind <> 'requeue' THEN job.scheduled_at
      WHEN o.keep_place THEN least(job.scheduled_at, o.at)
      ELSE coalesce(o.scheduled_at, o.at + make_interval(secs => o.delay)) END,
    deferred = o.kind = 'requeue' AND coalesce(o.scheduled_at, o.at + make_interval(secs => o.delay)) > o.at,
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
    job.failure_reason, o.kind = 'complete' OR job.status = 'failed' AS ends, o.at, o.next_id, o.next_type_name,
    o.next_version, o.next_rank, o.next_limit_key, o.next_input, o.next_delay, o.next_scheduled_at, o.next_meta
), continued AS (
  INSERT INTO /*schema*/job (
    /*include fragments/new_job_columns*/
  )
  SELECT
    /*include fragments/new_job_values*/
  FROM (
    SELECT s.next_id AS id, s.chain_id, s.chain_index + 1 AS chain_index, s.next_type_name AS type_name,
      s.next_version AS payload_version, s.next_rank AS rank, s.next_limit_key AS limit_key, s.next_input AS input,
      s.next_delay AS delay, s.next_scheduled_at AS scheduled_at, s.id AS origin_id, s.root_id, s.next_meta AS meta, s.at
    FROM settled s
    WHERE s.next_id IS NOT NULL AND s.status = 'completed'
  ) wanted
), /*include fragments/settled_chains*/
