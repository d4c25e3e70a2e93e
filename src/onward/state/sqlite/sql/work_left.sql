-- Whether there is something to work on: jobs that are due and of a type that is not paused, also those that wait for a place
-- under a limit, or jobs of these types that run.
SELECT EXISTS (
  SELECT 1 FROM (
    SELECT json_extract(value, '$[0]') AS type_name, json_extract(value, '$[1]') AS payload_version FROM json_each(:claims)
  ) claim
  WHERE EXISTS (SELECT 1 FROM /*schema*/job WHERE type_name = claim.type_name AND status = 'running')
    OR NOT EXISTS (SELECT 1 FROM /*schema*/paused_type paused WHERE paused.type_name = claim.type_name) AND (
      EXISTS (SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_pending
              WHERE type_name = claim.type_name AND payload_version = claim.payload_version
                AND status = 'pending' AND deferred = 0 AND (limit_key IS NULL OR admitted_after = attempt))
      OR EXISTS (SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_deferred
                 WHERE type_name = claim.type_name AND payload_version = claim.payload_version
                   AND status = 'pending' AND deferred = 1 AND scheduled_at <= :now)
      OR EXISTS (SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_held
                 WHERE /*include fragments/held_job*/
                   AND type_name = claim.type_name AND payload_version = claim.payload_version))
)
