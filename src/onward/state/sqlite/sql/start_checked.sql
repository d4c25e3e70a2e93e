-- Start jobs whose blockers and keys have been looked at: they may be blocked, or have failed already.
-- `given` is materialized so that json_each renders each element once, not once for every field read of it.
INSERT INTO /*schema*/job (
  /*include fragments/new_job_columns*/, blockers, open_blockers, runs_anyway, deduplication_key, has_dependents,
  failure_reason, ended_at, chain_ended_at, chain_failed
)
WITH given AS MATERIALIZED (SELECT value FROM json_each(:jobs)), wanted AS (
  SELECT
    /*include fragments/given_job*/,
    json_extract(value, '$[12]') AS status, json_extract(value, '$[13]') AS blockers,
    json_extract(value, '$[14]') AS open_blockers, json_extract(value, '$[15]') AS runs_anyway,
    json_extract(value, '$[16]') AS deduplication_key, json_extract(value, '$[17]') AS has_dependents
  FROM given
)
SELECT
  /*include fragments/new_job_values*/, wanted.blockers, wanted.open_blockers, wanted.runs_anyway,
  wanted.deduplication_key, wanted.has_dependents,
  CASE wanted.status WHEN 'failed' THEN 'blocker' END,
  CASE wanted.status WHEN 'failed' THEN :now END,
  CASE WHEN wanted.status = 'failed' AND wanted.chain_index = 0 THEN :now END,
  wanted.status = 'failed' AND wanted.chain_index = 0
FROM wanted
