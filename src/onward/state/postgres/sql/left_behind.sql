-- Whether there are jobs that may be taken: when a take has just brought too few, somebody had locked them.
SELECT 1
FROM unnest(:type_names::text[], :versions::integer[]) AS claim(type_name, payload_version),
  LATERAL (SELECT FROM /*schema*/job job
           WHERE job.type_name = claim.type_name AND job.payload_version = claim.payload_version
             AND job.status = 'pending' AND NOT job.deferred
             AND (job.limit_key IS NULL OR job.admitted_after = job.attempt)
           LIMIT 1) waiting
WHERE NOT EXISTS (SELECT FROM /*schema*/paused_type paused WHERE paused.type_name = claim.type_name)
LIMIT 1
