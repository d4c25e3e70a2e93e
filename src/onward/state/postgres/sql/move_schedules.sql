-- Claim ticks: of the schedules that are as they were read, and that nobody has locked, each goes on to its next tick.
WITH mine AS (
  SELECT schedule.name, move.next_at, move.last_tick, move.last_chain_id, move.skipped
  FROM json_to_recordset(:moves::json) AS move(
      name text, fingerprint text, changed text, tick timestamptz, next_at timestamptz, last_tick timestamptz,
      last_chain_id uuid, skipped bigint)
    JOIN /*schema*/schedule schedule ON schedule.name = move.name AND schedule.fingerprint = move.fingerprint
      AND schedule.next_at = move.tick AND schedule.changed IS NOT DISTINCT FROM move.changed
  WHERE schedule.paused_at IS NULL
  ORDER BY schedule.name
  FOR NO KEY UPDATE OF schedule SKIP LOCKED
)
UPDATE /*schema*/schedule schedule SET
  next_at = mine.next_at, error = NULL, skipped = schedule.skipped + mine.skipped,
  last_tick = coalesce(mine.last_tick, schedule.last_tick),
  last_chain_id = coalesce(mine.last_chain_id, schedule.last_chain_id)
FROM mine WHERE schedule.name = mine.name
RETURNING schedule.name
