-- Let go of attempts that did not end in time because their worker is stuck, and note why: the next reaper counts that.
WITH overdue AS MATERIALIZED (
  SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt, json_extract(value, '$[2]') AS error
  FROM json_each(:overdue)
)
UPDATE /*schema*/job AS job SET
  leased_until = 0,
  errors = json_insert(coalesce(job.errors, '[]'), '$[#]', json(overdue.error))
FROM overdue
WHERE job.id = overdue.id AND job.attempt = overdue.attempt AND job.leased_by = :worker AND job.status = 'running'
  AND job.leased_until > 0
RETURNING id
