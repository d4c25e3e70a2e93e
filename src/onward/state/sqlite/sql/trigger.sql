-- Run scheduled jobs now; one that is due keeps its place in line.
UPDATE /*schema*/job SET scheduled_at = min(scheduled_at, :now), deferred = 0
WHERE id IN (
    /*include fragments/jobs_of*/
  )
  AND status = 'pending'
RETURNING id, chain_id, type_name, 'triggered'
