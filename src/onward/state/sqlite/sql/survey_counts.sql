-- How many jobs of some types are blocked, pending and so on, counted up to :most; and of what some limits hold, so many for
-- each, by type, and for how many seconds the oldest of these has been due.
SELECT 'blocked' AS kind, asked.value AS counted, asked.value AS type_name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_blocked
    WHERE status = 'blocked' AND type_name = asked.value
    LIMIT :most)) AS jobs, NULL AS seconds
FROM json_each(:blocked) AS asked
UNION ALL
SELECT 'pending', asked.value, asked.value, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_pending
    WHERE status = 'pending' AND deferred = 0 AND (limit_key IS NULL OR admitted_after = attempt) AND type_name = asked.value
    LIMIT :most)), NULL
FROM json_each(:pending) AS asked
UNION ALL
SELECT 'scheduled', asked.value, asked.value, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_deferred
    WHERE status = 'pending' AND deferred = 1 AND type_name = asked.value
    LIMIT :most)), NULL
FROM json_each(:scheduled) AS asked
UNION ALL
SELECT 'running', asked.value, asked.value, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_running
    WHERE status = 'running' AND type_name = asked.value
    LIMIT :most)), NULL
FROM json_each(:running) AS asked
UNION ALL
SELECT 'failed', asked.value, asked.value, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_failed
    WHERE status = 'failed' AND type_name = asked.value
    LIMIT :most)), NULL
FROM json_each(:failed) AS asked
UNION ALL
SELECT 'held', asked.value, found.key, json_extract(found.value, '$[0]'), (:now - json_extract(found.value, '$[1]')) / 1000000.0
FROM json_each(:held) AS asked, json_each((
  SELECT json_group_object(type_name, json_array(jobs, due)) FROM (
    SELECT type_name, count(*) AS jobs, min(scheduled_at) AS due FROM (
      SELECT type_name, scheduled_at FROM /*schema*/job INDEXED BY /*schema*/job_held
      WHERE /*include fragments/held_job*/ AND limit_key >= asked.value || '/' AND limit_key < asked.value || '0'
      LIMIT :most)
    GROUP BY type_name))) AS found
