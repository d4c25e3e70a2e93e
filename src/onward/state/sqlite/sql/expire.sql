-- Let the leases of a worker that has died run out now, so that the next reaper takes its jobs back as crashes.
UPDATE /*schema*/job SET leased_until = :now - 1000
WHERE status = 'running' AND leased_by = :worker AND leased_until >= :now
RETURNING id
