-- How many jobs of each type are where. Each count is one range of a partial index; what is blocked or has completed is in
-- none, and is not counted.
SELECT asked.value,
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.value AND status = 'pending' AND deferred = 0),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.value AND status = 'pending' AND deferred = 1),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.value AND status = 'running'),
  (SELECT count(*) FROM /*schema*/job WHERE type_name = asked.value AND status = 'failed')
FROM json_each(:type_names) AS asked
