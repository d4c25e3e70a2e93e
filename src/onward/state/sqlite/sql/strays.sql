-- What a worker holds without knowing: the answer to its take was lost. There are never many running jobs.
SELECT id, chain_id, chain_index, type_name, payload_version, input, attempt, failures, transients, crashes, rank,
  root_id, errors, blockers, scheduled_at, created_at
FROM /*schema*/job
WHERE status = 'running' AND leased_by = :worker AND id NOT IN (SELECT value FROM json_each(:held_here))
ORDER BY id
