-- Whether there is something to work on: jobs that are due and of a type that is not paused, also those that wait for a place
-- under a limit, or jobs of these types that run.
SELECT EXISTS (
  SELECT FROM unnest(:type_names::text[], :versions::integer[]) AS claim(type_name, payload_version)
  WHERE EXISTS (SELECT FROM /*schema*/job WHERE type_name = claim.type_name AND status = 'running')
    OR NOT EXISTS (SELECT FROM /*schema*/paused_type paused WHERE paused.type_name = claim.type_name) AND (
      EXISTS (SELECT FROM /*schema*/job
              WHERE type_name = claim.type_name AND payload_version = claim.payload_version
                AND status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt))
      OR EXISTS (SELECT FROM /*schema*/job
                 WHERE type_name = claim.type_name AND payload_version = claim.payload_version
                   AND status = 'pending' AND deferred
                   AND scheduled_at <= coalesce(:now::timestamptz, statement_timestamp()))
      OR EXISTS (SELECT FROM /*schema*/job
                 WHERE /*include fragments/held*/
                   AND type_name = claim.type_name AND payload_version = claim.payload_version))
)
