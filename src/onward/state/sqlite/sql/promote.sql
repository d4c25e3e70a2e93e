-- Scheduled jobs whose time has come may be taken.
UPDATE /*schema*/job SET deferred = 0
WHERE rowid IN (
  SELECT due.rowid FROM /*schema*/job due
  WHERE due.status = 'pending' AND due.deferred = 1 AND due.type_name IN (SELECT value FROM json_each(:type_names))
    AND due.scheduled_at <= :now
  ORDER BY due.scheduled_at
  LIMIT :limit
)
RETURNING 1
