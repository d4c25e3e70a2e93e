-- What becomes of a job when its attempt `o` (kind, output, completed_by, at) is settled.
status = CASE
  WHEN o.kind = 'complete' OR (o.kind = 'continue' AND job.cancel_requested_at IS NULL) THEN 'completed'
  -- An attempt that was to be cancelled neither comes back nor goes on.
  WHEN o.kind = 'fail' OR job.cancel_requested_at IS NOT NULL THEN 'failed'
  ELSE 'pending' END,
output = o.output::json,
leased_by = NULL,
leased_until = NULL,
open_blockers = 0,
ended_at = CASE WHEN o.kind <> 'requeue' OR job.cancel_requested_at IS NOT NULL THEN o.at END,
completed_by = CASE
  WHEN o.kind = 'complete' OR (o.kind = 'continue' AND job.cancel_requested_at IS NULL) THEN o.completed_by END
