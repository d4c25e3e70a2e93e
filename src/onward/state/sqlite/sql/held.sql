-- What a worker holds, for a closer look at it: where each row is, what `take` returns of it, and who waits for its chain.
SELECT
  rowid, /*include fragments/taken_columns*/, has_dependents
FROM /*schema*/job
WHERE status = 'running' AND leased_by = :worker
