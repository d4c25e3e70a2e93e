-- Lock the best of `merged` one by one from the top, and claim them.
UPDATE /*schema*/job job SET
  status = 'running',
  attempt = least(job.attempt, 2147483646) + 1,
  ended_at = NULL,
  leased_by = :worker::text,
  leased_until = coalesce(:now::timestamptz, statement_timestamp())
    -- To look up a name among a hundred, for each of a hundred jobs, takes longer than to find them.
    + make_interval(secs => coalesce(:lease::double precision,
      (:leases::double precision[])[array_position(:type_names::text[], job.type_name)]))
WHERE job.id = ANY(ARRAY(
  SELECT pending.id
  FROM (SELECT * FROM merged ORDER BY rank, scheduled_at, id LIMIT 10000) candidate
  JOIN /*schema*/job pending ON pending.id = candidate.id
  -- IS TRUE: else, in a table where all was held when it was analyzed, the index of pending jobs is read once for each.
  WHERE (pending.status = 'pending' AND NOT pending.deferred
    AND (pending.limit_key IS NULL OR pending.admitted_after = pending.attempt)) IS TRUE
  ORDER BY candidate.rank, candidate.scheduled_at, candidate.id
  LIMIT :limit
  FOR NO KEY UPDATE OF pending SKIP LOCKED
))
