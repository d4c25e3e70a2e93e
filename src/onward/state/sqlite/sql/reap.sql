-- Take over leases that have run out, to settle them as crashes.
UPDATE /*schema*/job SET leased_by = :worker, leased_until = :until
WHERE rowid IN (SELECT ripe.rowid FROM /*schema*/job ripe WHERE ripe.id IN (SELECT value FROM json_each(:ids)))
RETURNING id, chain_id, chain_index, type_name, payload_version, input, attempt, failures, transients, crashes, rank,
  root_id, errors, blockers, scheduled_at, created_at
