-- A worker was seen to die: it keeps no promise.
UPDATE /*schema*/worker SET alive_until = 0 WHERE id = :worker
