/*include fragments/settled*/,
-- It has completed, or goes on, and says nothing else. What `o` says as a constant, the planner leaves out.
failure_reason = CASE WHEN o.kind = 'continue' AND job.cancel_requested_at IS NOT NULL THEN 'cancelled' END,
transients = 0,
crashes = 0,
deferred = false
