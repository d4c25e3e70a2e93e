-- Take the rows of a minute away, to be put together.
DELETE FROM /*schema*/figure WHERE minute = :minute
RETURNING minute, type_name, started, completed, failed, retried, waits, runs
