-- Renew the leases of running attempts that are still this worker's.
WITH held AS MATERIALIZED (
  SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt, json_extract(value, '$[2]') AS lease
  FROM json_each(:held)
)
UPDATE /*schema*/job AS job SET leased_until = :now + held.lease
FROM held
WHERE job.id = held.id AND job.attempt = held.attempt AND job.leased_by = :worker
