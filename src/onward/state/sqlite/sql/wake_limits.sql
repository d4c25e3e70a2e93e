-- Have the held jobs of limits, or of types, looked at.
INSERT INTO /*schema*/limit_wake
SELECT DISTINCT limit_key FROM /*schema*/job INDEXED BY /*schema*/job_held
WHERE /*include fragments/held_job*/
  AND (substr(limit_key, 1, instr(limit_key, '/') - 1) IN (SELECT value FROM json_each(:names))
    OR type_name IN (SELECT value FROM json_each(:type_names)) OR :all)
  AND limit_key NOT IN (SELECT key FROM /*schema*/limit_wake)
