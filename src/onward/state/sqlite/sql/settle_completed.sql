-- Settle attempts that completed their chains and say nothing else, all of one worker: what most attempts do.
-- The same as settle.sql does with them, for half of its cost; see there for the fence.
WITH given AS MATERIALIZED (
  SELECT value FROM json_each(:outcomes)
), outcome AS MATERIALIZED (
  SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt, json_extract(value, '$[2]') AS output
  FROM given
)
UPDATE /*schema*/job AS job SET
  /*include fragments/settled*/,
  failure_reason = NULL,
  transients = 0,
  crashes = 0,
  deferred = 0,
  chain_ended_at = CASE WHEN job.chain_index = 0 THEN :now END
FROM (SELECT outcome.*, 'complete' AS kind, :holder AS completed_by FROM outcome) AS o
WHERE job.id = o.id AND job.attempt = o.attempt AND job.leased_by = :holder AND job.ended_at IS NULL
RETURNING id, chain_id, chain_index, type_name, status, has_dependents IS NOT 0
