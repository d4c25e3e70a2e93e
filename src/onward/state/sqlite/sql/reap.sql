-- Take over leases that have run out, by the places of their rows, to settle them as crashes.
UPDATE /*schema*/job SET ended_at = NULL, leased_by = :worker, leased_until = :until
WHERE rowid IN (SELECT value FROM json_each(:places))
RETURNING
  /*include fragments/taken_columns*/
