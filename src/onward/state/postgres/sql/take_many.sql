-- Claim as take.sql does, of many types: one short statement for any number of them. With a branch for each it would be
-- planned for longer than it runs wherever it cannot be kept prepared, and asyncpg keeps none of more than 15 KiB.
-- Of each type the first few are looked at.
WITH /*include fragments/unpaused*/, found AS MATERIALIZED (
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
), /*include fragments/claim_found*/
-- Last a row without a job: whether there was more, and, if asked for, of what was seen the jobs of the rank that was
-- reached, in order.
SELECT taken.*, NULL::boolean, NULL::uuid[], NULL::timestamptz FROM taken
UNION ALL
SELECT nothing.*, EXISTS (SELECT FROM cut), seen.ids, /*schema*/readable(seen.until)
FROM (
  SELECT array_agg(id ORDER BY scheduled_at, id) AS ids, max(scheduled_at) AS until
  FROM merged WHERE :ahead::boolean AND rank = (SELECT max(rank) FROM taken)
) seen LEFT JOIN taken nothing ON false
