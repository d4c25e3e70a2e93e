-- Whether leases have expired, and when the next one of another worker's will: a read, so that a reaper with nothing to
-- do takes no write lock. One that has run out and is not to be reaped here is looked at again at :later.
SELECT
  coalesce(max((running.leased_until < :now OR typeof(running.leased_until) <> 'integer')
    AND running.id NOT IN (SELECT value FROM json_each(:held_here))), 0),
  min(CASE WHEN running.leased_by IS NOT :worker THEN
    CASE WHEN typeof(running.leased_until) = 'integer' AND running.leased_until > :now
      THEN running.leased_until ELSE :later END END)
FROM /*schema*/job running
WHERE running.status = 'running' AND running.type_name IN (SELECT value FROM json_each(:type_names))
