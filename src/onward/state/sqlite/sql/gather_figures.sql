-- Take the rows of a minute away, to be put together, and those that the times of several minutes are kept with; texts
-- as bytes, since a hand may have written anything there.
DELETE FROM /*schema*/figure WHERE minute IN (:minute, :first)
RETURNING minute, CAST(type_name AS BLOB), iif(typeof(started) = 'integer', started, NULL),
  iif(typeof(completed) = 'integer', completed, NULL), iif(typeof(failed) = 'integer', failed, NULL),
  iif(typeof(retried) = 'integer', retried, NULL), CAST(waits AS BLOB), CAST(runs AS BLOB)
