-- Which of these ids are taken.
SELECT id FROM /*schema*/job WHERE id IN (SELECT value FROM json_each(:ids))
