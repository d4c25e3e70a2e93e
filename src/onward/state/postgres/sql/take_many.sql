-- Claim as take.sql does, of many types: one short statement for any number of them, where a branch for each would be
-- planned for longer than it runs, and be too long for a client to keep it prepared.
-- Of each type the first few are looked at. If one has more, nothing that comes after the last of these is claimed: it might
-- not be the next. Then the answer says so, in its last column; it has a row, without a job, also if nothing was claimed.
WITH claim AS (
  SELECT asked.*
  FROM unnest(:type_names::text[], :versions::integer[], :from_ranks::integer[], :from_times::timestamptz[],
    :firsts::integer[]) AS asked(type_name, payload_version, from_rank, from_time, first)
  WHERE NOT EXISTS (SELECT FROM /*schema*/paused_type paused WHERE paused.type_name = asked.type_name)
), found AS MATERIALIZED (
  SELECT ahead.*
  FROM claim CROSS JOIN LATERAL (
    SELECT *, row_number() OVER (ORDER BY rank, scheduled_at, id) = claim.first AS is_last
    FROM (
      (/*include fragments/claimable_jobs*/
         AND type_name = claim.type_name AND payload_version = claim.payload_version
         AND rank < claim.from_rank
       ORDER BY rank, scheduled_at, id LIMIT claim.first)
      UNION ALL
      (/*include fragments/claimable_jobs*/
         AND type_name = claim.type_name AND payload_version = claim.payload_version
         AND (rank, scheduled_at) >= (coalesce(claim.from_rank, -2147483648), claim.from_time)
       ORDER BY rank, scheduled_at, id LIMIT claim.first)
    ) waiting
    ORDER BY rank, scheduled_at, id LIMIT claim.first
  ) ahead
), cut AS (
  SELECT rank, scheduled_at, id FROM found WHERE is_last ORDER BY rank, scheduled_at, id LIMIT 1
), merged AS (
  SELECT * FROM found WHERE ((rank, scheduled_at, id) <= (SELECT rank, scheduled_at, id FROM cut)) IS NOT FALSE
), taken AS (
  /*include fragments/claim*/
)
SELECT taken.*, cut.id IS NOT NULL
FROM (SELECT) answer LEFT JOIN cut ON true LEFT JOIN taken ON true
