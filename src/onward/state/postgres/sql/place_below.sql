-- How far so many jobs reach, newest first.
SELECT id FROM /*schema*/job
WHERE id <= coalesce(:after::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff') AND (:after::uuid IS NULL OR id < :after::uuid)
ORDER BY id DESC
LIMIT 1 OFFSET :jobs
