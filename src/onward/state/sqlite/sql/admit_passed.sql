-- A job has a place of a key, and goes on to the next.
INSERT INTO /*schema*/limit_place (key, job_id) SELECT :key, value FROM json_each(:ids)
