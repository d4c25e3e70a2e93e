-- What a worker holds without knowing: the answer to its take was lost. There are never many running jobs.
SELECT
  id, chain_id, chain_index, type_name, payload_version, input::text, attempt, failures, transients, crashes, rank,
  root_id, errors::text, blockers, /*schema*/readable(scheduled_at), /*schema*/readable(created_at)
FROM /*schema*/job
WHERE status = 'running' AND leased_by = :worker::text AND NOT id = ANY(:held_here::uuid[])
ORDER BY id
