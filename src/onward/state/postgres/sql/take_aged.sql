-- Claim as take_many.sql does, but those first that have waited longest, where one rank counts for `ageing` seconds.
-- The ranks in use are few: each is a range of the index in the order of time, and found by a hop over the one before.
WITH RECURSIVE /*include fragments/unpaused*/, line AS (
  SELECT claim.*, best.rank
  FROM claim CROSS JOIN LATERAL (
    /*include fragments/claimable_jobs*/
      AND type_name = claim.type_name AND payload_version = claim.payload_version
    ORDER BY rank, scheduled_at, id LIMIT 1
  ) best
  UNION ALL
  SELECT line.type_name, line.payload_version, line.from_rank, line.from_time, line.first, next.rank
  FROM line CROSS JOIN LATERAL (
    /*include fragments/claimable_jobs*/
      AND type_name = line.type_name AND payload_version = line.payload_version AND rank > line.rank
    ORDER BY rank, scheduled_at, id LIMIT 1
  ) next
), found AS MATERIALIZED (
  SELECT ahead.*
  FROM line CROSS JOIN LATERAL (
    SELECT waiting.id, date_part('epoch', waiting.scheduled_at) + line.rank * :ageing::double precision AS rank,
      waiting.scheduled_at, row_number() OVER (ORDER BY waiting.scheduled_at, waiting.id) = line.first AS is_last
    FROM (
      /*include fragments/claimable_jobs*/
        AND type_name = line.type_name AND payload_version = line.payload_version AND rank = line.rank
      ORDER BY scheduled_at, id LIMIT line.first
    ) waiting
  ) ahead
), /*include fragments/claim_found*/
-- Last a row without a job: whether there was more.
SELECT taken.*, NULL::boolean, NULL::uuid[], NULL::timestamptz FROM taken
UNION ALL
SELECT nothing.*, EXISTS (SELECT FROM cut), NULL::uuid[], NULL::timestamptz
FROM (SELECT) answer LEFT JOIN taken nothing ON false
