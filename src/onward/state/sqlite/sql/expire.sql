-- Let go of the leases of a worker that has died, so that the next reaper takes its jobs back as crashes.
-- 0 and not a moment ago: what ran out by itself is watched first.
UPDATE /*schema*/job SET leased_until = 0
WHERE status = 'running' AND leased_by = :worker AND leased_until > 0
RETURNING id
