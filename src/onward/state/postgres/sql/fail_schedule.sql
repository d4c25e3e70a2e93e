-- Say why a tick could not be started, if it is still to be. SKIP LOCKED: it is said again when it is tried again.
UPDATE /*schema*/schedule schedule SET error = :error::text
WHERE schedule.name IN (
  SELECT due.name FROM /*schema*/schedule due
  WHERE due.name = :name::text AND due.next_at = :tick::timestamptz AND due.error IS DISTINCT FROM :error::text
  FOR NO KEY UPDATE SKIP LOCKED)
