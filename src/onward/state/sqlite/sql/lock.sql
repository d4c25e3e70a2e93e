-- Take the write lock, which is what locking a row comes to here: a caller's transaction may only have read so far.
UPDATE /*schema*/job SET attempt = attempt WHERE 0
