-- Take the rows of a minute away, to be put together, and those that the times of several minutes are kept with.
DELETE FROM /*schema*/figure WHERE minute IN (:minute::integer, :first::integer)
RETURNING minute, type_name, started, completed, failed, retried, waits, runs
