-- Whether more jobs of a key are held, but for those of types that are paused or that nobody serves.
SELECT EXISTS (
  SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_held
  WHERE /*include fragments/held_job*/ AND limit_key = :key
    AND type_name NOT IN (SELECT type_name FROM /*schema*/paused_type)
    AND (type_name, payload_version) NOT IN (SELECT type_name, payload_version FROM /*schema*/unserved_type))
