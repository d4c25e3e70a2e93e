-- What jobs have come by is free again.
DELETE FROM /*schema*/limit_place WHERE job_id IN (SELECT value FROM json_each(:ids))
