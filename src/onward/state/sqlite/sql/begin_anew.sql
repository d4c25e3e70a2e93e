-- Jobs of several limits that wait for the next begin anew: who, and the keys of each.
UPDATE /*schema*/job SET admitted_after = NULL, deferred = deferred, limit_key = json_extract(limit_keys, '$[0]')
WHERE status = 'pending' AND CASE WHEN json_valid(limit_keys) THEN json_type(limit_keys) = 'array' END AND id IN (
  SELECT place.job_id FROM /*schema*/limit_place place CROSS JOIN /*schema*/job waiting ON waiting.id = place.job_id
  WHERE substr(place.key, 1, instr(place.key, '/') - 1) IN (SELECT value FROM json_each(:names))
    OR waiting.type_name IN (SELECT value FROM json_each(:type_names))
    OR :unserved AND (waiting.type_name, waiting.payload_version) IN (SELECT type_name, payload_version FROM /*schema*/unserved_type))
RETURNING id, limit_keys
