-- Take over expired leases of the types given, oldest first, to settle them as crashes. A lease that is no time at all, which
-- only a hand can have made, counts as expired.
-- :now is when the reaper began to wait for the write lock: who renews or completes meanwhile is alive.
UPDATE /*schema*/job SET ended_at = NULL, leased_by = :worker, leased_until = :until
WHERE rowid IN (
  SELECT expired.rowid FROM /*schema*/job expired
  WHERE expired.status = 'running' AND expired.type_name IN (SELECT value FROM json_each(:type_names))
    AND (expired.leased_until < :now OR typeof(expired.leased_until) <> 'integer')
    AND expired.id NOT IN (SELECT value FROM json_each(:held_here))
  ORDER BY expired.leased_until, expired.id
  LIMIT :limit
)
RETURNING id, chain_id, chain_index, type_name, payload_version, input, attempt, failures, transients, crashes, rank,
  root_id, errors, blockers, scheduled_at, created_at
