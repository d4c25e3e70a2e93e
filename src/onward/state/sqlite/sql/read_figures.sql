-- What happened from a minute on; texts as bytes, since a hand may have written anything there.
SELECT minute, CAST(type_name AS BLOB), started, completed, failed, retried, CAST(waits AS BLOB), CAST(runs AS BLOB)
FROM /*schema*/figure WHERE minute >= :minute AND typeof(minute) = 'integer'
  AND typeof(started) = 'integer' AND typeof(completed) = 'integer'
  AND typeof(failed) = 'integer' AND typeof(retried) = 'integer'
