-- Claim ticks: of the schedules that are as they were read each goes on to its next tick.
WITH move AS MATERIALIZED (
  SELECT json_extract(value, '$.name') AS name, json_extract(value, '$.fingerprint') AS fingerprint,
    json_extract(value, '$.changed') AS changed, json_extract(value, '$.tick') AS tick,
    json_extract(value, '$.next_at') AS next_at, json_extract(value, '$.last_tick') AS last_tick,
    json_extract(value, '$.last_chain_id') AS last_chain_id, json_extract(value, '$.skipped') AS skipped
  FROM json_each(:moves)
)
UPDATE /*schema*/schedule AS schedule SET
  next_at = move.next_at, error = NULL, skipped = schedule.skipped + move.skipped,
  last_tick = coalesce(move.last_tick, schedule.last_tick),
  last_chain_id = coalesce(move.last_chain_id, schedule.last_chain_id)
FROM move
WHERE schedule.name = move.name AND schedule.fingerprint = move.fingerprint AND schedule.next_at = move.tick
  AND schedule.changed IS move.changed AND schedule.paused_at IS NULL
RETURNING name
