-- Take from jobs of limits, of types, or of types that nobody serves, the places of those that have not started: they are held again. `deferred` stays, and
-- is named so that the triggers hear of it.
UPDATE /*schema*/job SET admitted_after = NULL, deferred = deferred
WHERE rowid IN (
  SELECT rowid FROM /*schema*/job INDEXED BY /*schema*/job_admitted
  WHERE /*include fragments/placed_job*/ AND status = 'pending'
    AND (substr(limit_key, 1, instr(limit_key, '/') - 1) IN (SELECT value FROM json_each(:names))
      OR type_name IN (SELECT value FROM json_each(:type_names))
      OR :unserved AND (type_name, payload_version) IN (SELECT type_name, payload_version FROM /*schema*/unserved_type)))
