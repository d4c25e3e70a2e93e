-- Claim as take.sql does, but only what is better than where the last take ended, or comes after it. Two branches for each
-- type: one condition that says both would not seek.
WITH /*include fragments/claimable*/, merged AS (
  /*for each type, union all*/
  (/*include fragments/claimable_jobs*/
     AND /*include fragments/of_claimable_type*/
     AND rank < (:from_ranks::integer[])[/*n*/1]
   ORDER BY rank, scheduled_at, id LIMIT 10000)
  UNION ALL
  (/*include fragments/claimable_jobs*/
     AND /*include fragments/of_claimable_type*/
     AND (rank, scheduled_at) >= ((:from_ranks::integer[])[/*n*/1], (:from_times::timestamptz[])[/*n*/1])
   ORDER BY rank, scheduled_at, id LIMIT 10000)
  /*end*/
)
/*include fragments/claim*/
RETURNING
  /*include fragments/taken_columns*/
