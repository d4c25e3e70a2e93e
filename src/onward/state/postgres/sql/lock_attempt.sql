-- Lock a job for its attempt, before the handler's first statement: what it is now, or no row when it is gone.
SELECT attempt, leased_by, status FROM /*schema*/job WHERE id = :id::uuid FOR NO KEY UPDATE
