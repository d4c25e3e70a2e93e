-- Types and versions that somebody serves again, or of which nobody can tell, because no worker is known.
WITH /*include fragments/served*/
DELETE FROM /*schema*/unserved_type
WHERE NOT EXISTS (SELECT 1 FROM served) OR (type_name, payload_version) IN (SELECT type_name, payload_version FROM served)
RETURNING type_name
