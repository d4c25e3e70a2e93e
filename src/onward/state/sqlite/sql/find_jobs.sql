-- Jobs by id; those that do not exist are missing from the answer.
SELECT /*job columns*/job.* FROM /*schema*/job job WHERE job.id IN (SELECT value FROM json_each(:ids))
