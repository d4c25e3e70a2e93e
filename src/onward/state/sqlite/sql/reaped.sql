-- What a worker has just reaped.
SELECT
  /*include fragments/taken_columns*/
FROM /*schema*/job
WHERE status = 'running' AND leased_by = :worker AND leased_until = :until
