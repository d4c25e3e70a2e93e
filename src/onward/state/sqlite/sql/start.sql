-- Start jobs that wait for nothing and have no key, in the order given.
-- DO NOTHING: the ids are ours, so a row that exists is this very start, repeated after a commit of unknown outcome.
-- WHERE 1: without it the parser takes ON for the condition of a join.
-- `given` is materialized so that json_each renders each element once, not once for every field read of it.
INSERT INTO /*schema*/job (
  id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, limit_key, input, created_at,
  scheduled_at, origin_id, root_id
)
WITH given AS MATERIALIZED (SELECT value FROM json_each(:jobs))
SELECT
  json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
  json_extract(value, '$[4]'), 'pending', json_extract(value, '$[5]'), json_extract(value, '$[6]') > :now,
  json_extract(value, '$[7]'), json_extract(value, '$[8]'), :now, json_extract(value, '$[6]'),
  json_extract(value, '$[9]'), json_extract(value, '$[10]')
FROM given
WHERE 1
ON CONFLICT (id) DO NOTHING
