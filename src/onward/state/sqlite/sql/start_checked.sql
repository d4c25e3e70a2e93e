-- Start jobs whose blockers and keys have been looked at: they may be blocked, or have failed already.
-- `given` is materialized so that json_each renders each element once, not once for every field read of it.
INSERT INTO /*schema*/job (
  id, chain_id, chain_index, type_name, payload_version, rank, scheduled_at, limit_key, input, origin_id, root_id,
  status, deferred, created_at, blockers, open_blockers, runs_anyway, deduplication_key, has_dependents,
  failure_reason, ended_at, chain_ended_at, chain_failed
)
WITH given AS MATERIALIZED (SELECT value FROM json_each(:jobs))
SELECT
  json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
  json_extract(value, '$[4]'), json_extract(value, '$[5]'), json_extract(value, '$[6]'), json_extract(value, '$[7]'),
  json_extract(value, '$[8]'), json_extract(value, '$[9]'), json_extract(value, '$[10]'),
  json_extract(value, '$[11]'), json_extract(value, '$[11]') = 'pending' AND json_extract(value, '$[6]') > :now, :now,
  json_extract(value, '$[12]'), json_extract(value, '$[13]'), json_extract(value, '$[14]'),
  json_extract(value, '$[15]'), json_extract(value, '$[16]'),
  CASE json_extract(value, '$[11]') WHEN 'failed' THEN 'blocker' END,
  CASE json_extract(value, '$[11]') WHEN 'failed' THEN :now END,
  CASE WHEN json_extract(value, '$[11]') = 'failed' AND json_extract(value, '$[2]') = 0 THEN :now END,
  json_extract(value, '$[11]') = 'failed' AND json_extract(value, '$[2]') = 0
FROM given
