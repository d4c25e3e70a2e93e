-- Start jobs that wait for nothing and have no key, in the order given.
-- DO NOTHING: the ids are ours, so a row that exists is this very start, repeated after a commit of unknown outcome.
-- WHERE 1: without it the parser takes ON for the condition of a join.
-- `given` is materialized so that json_each renders each element once, not once for every field read of it.
INSERT INTO /*schema*/job (
  /*include fragments/new_job_columns*/
)
WITH given AS MATERIALIZED (SELECT value FROM json_each(:jobs)), wanted AS (
  SELECT 'pending' AS status,
    /*include fragments/given_job*/
  FROM given
)
SELECT
  /*include fragments/new_job_values*/
FROM wanted
WHERE 1
ON CONFLICT (id) DO NOTHING
