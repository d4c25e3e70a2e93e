-- What waits, runs or failed, by indexes that have nothing else; or what belongs to chains.
SELECT id FROM /*schema*/job INDEXED BY /*schema*/job_pending
WHERE status = 'pending' AND deferred = 0 AND (limit_key IS NULL OR admitted_after = attempt)
  AND :chain_ids IS NULL AND 'pending' IN (SELECT value FROM json_each(:statuses))
  AND (:indexed_types IS NULL OR type_name IN (SELECT value FROM json_each(:indexed_types)))
UNION ALL
SELECT id FROM /*schema*/job INDEXED BY /*schema*/job_held
WHERE /*include fragments/held_job*/
  AND :chain_ids IS NULL AND 'pending' IN (SELECT value FROM json_each(:statuses))
  AND (:indexed_types IS NULL OR type_name IN (SELECT value FROM json_each(:indexed_types)))
UNION ALL
SELECT id FROM /*schema*/job INDEXED BY /*schema*/job_deferred
WHERE status = 'pending' AND deferred = 1 AND :chain_ids IS NULL AND 'pending' IN (SELECT value FROM json_each(:statuses))
  AND (:indexed_types IS NULL OR type_name IN (SELECT value FROM json_each(:indexed_types)))
UNION ALL
SELECT id FROM /*schema*/job INDEXED BY /*schema*/job_running
WHERE status = 'running' AND :chain_ids IS NULL AND 'running' IN (SELECT value FROM json_each(:statuses))
  AND (:indexed_types IS NULL OR type_name IN (SELECT value FROM json_each(:indexed_types)))
UNION ALL
SELECT id FROM /*schema*/job INDEXED BY /*schema*/job_failed
WHERE status = 'failed' AND :chain_ids IS NULL AND 'failed' IN (SELECT value FROM json_each(:statuses))
  AND (:indexed_types IS NULL OR type_name IN (SELECT value FROM json_each(:indexed_types)))
UNION ALL
SELECT DISTINCT value FROM json_each(:chain_ids)
UNION ALL
SELECT id FROM /*schema*/job WHERE chain_id IN (SELECT value FROM json_each(:chain_ids)) AND chain_index > 0
