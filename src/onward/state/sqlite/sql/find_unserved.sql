-- Types and versions of which jobs have a place, while none of the workers that live takes them: others of a limit could have
-- it. Where no worker is known nobody else would want it.
WITH /*include fragments/served*/
INSERT INTO /*schema*/unserved_type (type_name, payload_version)
SELECT type_name, payload_version FROM (
  SELECT type_name, payload_version FROM /*schema*/job INDEXED BY /*schema*/job_admitted
  WHERE /*include fragments/placed_job*/ AND status = 'pending'
  UNION
  SELECT waiting.type_name, waiting.payload_version
  FROM /*schema*/limit_place place CROSS JOIN /*schema*/job waiting ON waiting.id = place.job_id
  WHERE waiting.status = 'pending'
)
WHERE EXISTS (SELECT 1 FROM served) AND (type_name, payload_version) NOT IN (SELECT type_name, payload_version FROM served)
ON CONFLICT DO NOTHING
RETURNING type_name
