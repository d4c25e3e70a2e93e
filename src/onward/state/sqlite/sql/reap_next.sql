-- Whether leases have expired, and when the next one of another worker's will: a read, so that a reaper with nothing to
-- do takes no write lock.
SELECT
  coalesce(max(running.leased_until < :now AND running.id NOT IN (SELECT value FROM json_each(:held_here))), 0),
  min(CASE WHEN running.leased_by <> :worker THEN running.leased_until END)
FROM /*schema*/job running
WHERE running.status = 'running' AND running.type_name IN (SELECT value FROM json_each(:type_names))
