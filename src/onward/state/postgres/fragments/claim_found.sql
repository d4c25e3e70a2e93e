cut AS (
  -- Where there is more of a range than was looked at, what comes after that may not be the next.
  SELECT rank, scheduled_at, id FROM found WHERE is_last ORDER BY rank, scheduled_at, id LIMIT 1
), merged AS (
  SELECT * FROM found WHERE ((rank, scheduled_at, id) <= (SELECT rank, scheduled_at, id FROM cut)) IS NOT FALSE
), taken AS (
  /*include fragments/claim*/
  RETURNING
    /*include fragments/taken_columns*/
)
