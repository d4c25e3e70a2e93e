-- Give places to the first of the held jobs of a key. As if they had come now: who has many places does not come before
-- those who have one.
UPDATE /*schema*/job SET admitted_after = attempt, scheduled_at = max(scheduled_at, :now)
WHERE rowid IN (
  SELECT rowid FROM /*schema*/job INDEXED BY /*schema*/job_held
  WHERE /*include fragments/held_job*/ AND limit_key = :key
    AND type_name NOT IN (SELECT type_name FROM /*schema*/paused_type)
  ORDER BY rank, scheduled_at, id
  LIMIT :most
)
RETURNING type_name
