-- Leases of the types given that have run out, oldest first.
SELECT expired.id, expired.attempt, expired.leased_until
FROM /*schema*/job expired
WHERE expired.status = 'running' AND expired.type_name IN (SELECT value FROM json_each(:type_names))
  AND expired.leased_until < :now AND expired.id NOT IN (SELECT value FROM json_each(:held_here))
ORDER BY expired.leased_until, expired.id
LIMIT :limit
