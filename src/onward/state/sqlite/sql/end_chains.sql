-- Chains end at a later job: their headers say so.
WITH ended AS MATERIALIZED (
  SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS failed FROM json_each(:chains)
)
UPDATE /*schema*/job AS job SET chain_ended_at = :now, chain_failed = ended.failed
FROM ended
WHERE job.id = ended.id
RETURNING id, has_dependents IS NOT 0
