-- Lock a job for its attempt, if it is still the attempt's and nothing waits for a chain that consists of this job only:
-- then `complete_attempt` is all that its end takes. One row, or none when a closer look is needed, as where somebody
-- wants it cancelled.
SELECT 1 FROM /*schema*/job
WHERE id = :id::uuid AND attempt = :attempt::integer AND leased_by = :holder::text
  AND NOT (chain_index = 0 AND has_dependents) AND cancel_requested_at IS NULL
FOR NO KEY UPDATE
