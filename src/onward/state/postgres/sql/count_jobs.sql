-- How many jobs of each type are where. Each count is one range of a partial index; what is blocked or has completed is in
-- none, and is not counted.
SELECT asked.name,
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.name AND status = 'pending' AND NOT deferred),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.name AND status = 'pending' AND deferred),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.name AND status = 'running'),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.name AND status = 'failed')
FROM unnest(:type_names::text[]) AS asked(name)
