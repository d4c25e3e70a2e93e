-- How many jobs of each type are where. Each count is one range of a partial index, but for what is held by limits, which
-- are gone through; what is blocked or has completed is in none, and is not counted.
SELECT asked.name,
  (SELECT count(*) FROM /*schema*/job
   WHERE type_name = asked.name
     AND status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt))
  + (SELECT count(*) FROM /*schema*/job
     WHERE /*include fragments/held*/ AND type_name = asked.name),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.name AND status = 'pending' AND deferred),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.name AND status = 'running'),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.name AND status = 'failed')
FROM unnest(:type_names::text[]) AS asked(name)
