-- Claim the best pending jobs of the types given, as many as there are free slots.
-- One ordered index range per type and version, merged, and locked one by one from the top: reads about as many rows
-- as it takes, whatever the backlog. Each branch needs its own ORDER BY and LIMIT, else the planner sorts everything.
WITH /*include fragments/claimable*/, merged AS (
  /*for each type, union all*/
  (/*include fragments/claimable_jobs*/
     AND /*include fragments/of_claimable_type*/
   ORDER BY rank, scheduled_at, id LIMIT 10000)
  /*end*/
)
/*include fragments/claim*/
RETURNING
  /*include fragments/taken_columns*/
