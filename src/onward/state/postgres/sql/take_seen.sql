-- Claim as take_many.sql does, of the jobs that one of these has seen in line behind those it brought: all of one rank. None,
-- if by now there is one of a better rank. What has moved to another place in line since is passed over.
WITH better AS (
  SELECT FROM unnest(:type_names::text[], :versions::integer[]) AS claim(type_name, payload_version) CROSS JOIN LATERAL (
    /*include fragments/claimable_jobs*/
      AND type_name = claim.type_name AND payload_version = claim.payload_version AND rank < :rank::integer
    ORDER BY rank, scheduled_at, id LIMIT 1
  ) first
  WHERE claim.type_name <> ALL (ARRAY(SELECT paused.type_name FROM /*schema*/paused_type paused))
), merged AS (
  SELECT seen.id, seen.place AS rank, NULL::timestamptz AS scheduled_at
  FROM unnest(:ids::uuid[]) WITH ORDINALITY AS seen(id, place) WHERE NOT EXISTS (SELECT FROM better)
)
/*include fragments/claim*/
AND job.rank = :rank::integer AND job.scheduled_at <= :until::timestamptz
AND job.type_name <> ALL (ARRAY(SELECT paused.type_name FROM /*schema*/paused_type paused))
RETURNING
  /*include fragments/taken_columns*/
