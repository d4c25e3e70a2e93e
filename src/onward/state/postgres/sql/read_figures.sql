-- What happened from a minute on.
SELECT minute, type_name, started, completed, failed, retried, waits, runs
FROM /*schema*/figure WHERE minute >= :minute::integer
