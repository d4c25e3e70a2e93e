-- What the jobs just started wait for, in the order given.
INSERT INTO /*schema*/blocker (job_id, position, blocked_by_chain_id)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(:blockers)
