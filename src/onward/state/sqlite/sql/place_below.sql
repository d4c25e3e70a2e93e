-- How far so many jobs reach, newest first.
SELECT id FROM /*schema*/job WHERE id < coalesce(:after, x'ffffffffffffffffffff') ORDER BY id DESC LIMIT 1 OFFSET :jobs
