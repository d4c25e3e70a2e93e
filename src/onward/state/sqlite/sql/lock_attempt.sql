-- What a job is now, before the handler's first statement; no row when it is gone.
-- The transaction was begun with the write lock, so nobody else changes it meanwhile.
SELECT attempt, leased_by, status FROM /*schema*/job WHERE id = :id
