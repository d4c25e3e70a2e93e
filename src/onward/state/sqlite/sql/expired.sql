-- Leases of the types given that have run out, oldest first, by the places of their rows. One that is no time at all, which
-- only a hand can have made, counts as let go.
-- :now is when the reaper began to wait for the write lock: who renews or completes meanwhile is alive.
SELECT expired.rowid, CASE WHEN typeof(expired.attempt) = 'integer' THEN expired.attempt ELSE 0 END,
  CASE WHEN typeof(expired.leased_until) = 'integer' THEN expired.leased_until ELSE 0 END
FROM /*schema*/job expired
WHERE expired.status = 'running' AND expired.type_name IN (SELECT value FROM json_each(:type_names))
  AND (expired.leased_until < :now OR typeof(expired.leased_until) <> 'integer')
  AND expired.id NOT IN (SELECT value FROM json_each(:held_here))
ORDER BY expired.leased_until, expired.id
LIMIT :limit
