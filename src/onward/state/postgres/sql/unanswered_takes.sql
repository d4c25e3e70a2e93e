-- What a worker holds without knowing: the answer to its take was lost. There are never many running jobs.
SELECT
  /*include fragments/taken_columns*/
FROM /*schema*/job job
WHERE status = 'running' AND leased_by = :worker::text AND NOT id = ANY(:held_here::uuid[])
ORDER BY id
