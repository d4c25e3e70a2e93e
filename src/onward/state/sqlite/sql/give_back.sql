-- Give back the jobs of a worker that was ended through no fault of theirs: they count nothing and keep their place.
-- Not those that were let go of, or are to be cancelled: these are a reaper's.
UPDATE /*schema*/job SET status = 'pending', deferred = 0, leased_by = NULL, leased_until = NULL
WHERE status = 'running' AND leased_by = :worker AND leased_until > 0 AND cancel_requested_at IS NULL
RETURNING id
