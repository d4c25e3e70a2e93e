-- Claim ticks: of the schedules that are as they were read, and that nobody has locked, each goes on to its next tick.
-- Nor may anybody have the chain locked that a tick's own is to wait for: the start would wait, too, and with it all others.
WITH move AS MATERIALIZED (
  SELECT * FROM json_to_recordset(:moves::json) AS move(
    name text, fingerprint text, changed text, tick timestamptz, next_at timestamptz, last_tick timestamptz,
    last_chain_id uuid, skipped bigint, behind uuid)
), free AS MATERIALIZED (
  SELECT chain.id FROM /*schema*/job chain WHERE chain.id = ANY(ARRAY(SELECT move.behind FROM move))
  ORDER BY chain.id FOR NO KEY UPDATE SKIP LOCKED
), mine AS (
  SELECT schedule.name, move.next_at, move.last_tick, move.last_chain_id, move.skipped
  FROM move JOIN /*schema*/schedule schedule ON schedule.name = move.name AND schedule.fingerprint = move.fingerprint
      AND schedule.next_at = move.tick AND schedule.changed IS NOT DISTINCT FROM move.changed
  WHERE schedule.paused_at IS NULL AND (move.behind IS NULL OR move.behind IN (SELECT free.id FROM free))
  ORDER BY schedule.name
  FOR NO KEY UPDATE OF schedule SKIP LOCKED
)
UPDATE /*schema*/schedule schedule SET
  next_at = mine.next_at, error = NULL, skipped = schedule.skipped + mine.skipped,
  last_tick = coalesce(mine.last_tick, schedule.last_tick),
  last_chain_id = coalesce(mine.last_chain_id, schedule.last_chain_id)
FROM mine WHERE schedule.name = mine.name
RETURNING schedule.name
