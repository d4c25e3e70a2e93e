-- How many jobs of each type are where. Each count is one range of a partial index, but for what is held by limits, which
-- are gone through; what is blocked or has completed is in none, and is not counted.
SELECT asked.value,
  (SELECT count(*) FROM /*schema*/job INDEXED BY /*schema*/job_pending
   WHERE type_name = asked.value
     AND status = 'pending' AND deferred = 0 AND (limit_key IS NULL OR admitted_after = attempt))
  + (SELECT count(*) FROM /*schema*/job INDEXED BY /*schema*/job_held
     WHERE /*include fragments/held_job*/ AND type_name = asked.value),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.value AND status = 'pending' AND deferred = 1),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.value AND status = 'running'),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.value AND status = 'failed')
FROM json_each(:type_names) AS asked
