-- Claim the best pending jobs of the types given, as many as there are free slots.
-- One ordered index range per type and version, merged, and locked one by one from the top: reads about as many rows
-- as it takes, whatever the backlog. Each branch needs its own ORDER BY and LIMIT, else the planner sorts everything.
-- The branch is repeated for every type when the statement is loaded; to go on from a position, it takes two for each.
WITH claimable AS MATERIALIZED (
  SELECT array_agg(CASE WHEN paused.type_name IS NULL THEN asked.name END ORDER BY asked.position) AS names
  FROM unnest(:type_names::text[]) WITH ORDINALITY AS asked(name, position)
  LEFT JOIN /*schema*/paused_type paused ON paused.type_name = asked.name
)
UPDATE /*schema*/job job SET
  status = 'running',
  attempt = least(job.attempt, 2147483646) + 1,
  ended_at = NULL,
  leased_by = :worker::text,
  leased_until = coalesce(:now::timestamptz, statement_timestamp())
    + make_interval(secs => (:leases::double precision[])[array_position(:type_names::text[], job.type_name)])
WHERE job.id = ANY(ARRAY(
  SELECT pending.id
  FROM (
    SELECT * FROM (
      /*for each type, union all*/
      (SELECT id, rank, scheduled_at FROM /*schema*/job
       WHERE type_name = (SELECT names[/*n*/1] FROM claimable) AND payload_version = (:versions::integer[])[/*n*/1]
         AND status = 'pending' AND NOT deferred /*each*/
       ORDER BY rank, scheduled_at, id LIMIT 10000)
      /*end*/
    ) merged
    ORDER BY rank, scheduled_at, id LIMIT 10000
  ) candidate
  JOIN /*schema*/job pending ON pending.id = candidate.id
  WHERE pending.status = 'pending' AND NOT pending.deferred
  ORDER BY candidate.rank, candidate.scheduled_at, candidate.id
  LIMIT :limit
  FOR NO KEY UPDATE OF pending SKIP LOCKED
))
RETURNING job.id, job.chain_id, job.chain_index, job.type_name, job.payload_version, job.input::text, job.attempt,
  job.failures, job.transients, job.crashes, job.rank, job.root_id, job.errors::text, job.blockers,
  /*schema*/readable(job.scheduled_at), /*schema*/readable(job.created_at)
