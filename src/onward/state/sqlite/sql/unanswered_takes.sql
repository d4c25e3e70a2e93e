-- What a worker holds without knowing: the answer to its take was lost. There are never many running jobs.
SELECT
  /*include fragments/taken_columns*/
FROM /*schema*/job
WHERE status = 'running' AND leased_by = :worker AND id NOT IN (SELECT value FROM json_each(:held_here))
ORDER BY id
