-- The chains go on.
UPDATE /*schema*/job SET chain_ended_at = NULL, chain_failed = 0
WHERE id IN (SELECT value FROM json_each(:chain_ids))
