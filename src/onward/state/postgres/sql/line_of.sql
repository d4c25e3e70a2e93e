-- Where a job is in its line, and the time. One that is held for a place of a limit: how many are held before it there, how
-- many have a place, and the next slot of the rate. One that waits for a worker: how many of these types and versions come
-- before it. Each priority in use is a range of the index, as in take_aged.sql; nothing is counted beyond :most.
WITH RECURSIVE asked AS (
  SELECT id, status, rank, scheduled_at, limit_key, (/*include fragments/held*/) AS is_held
  FROM /*schema*/job WHERE id = :id::uuid
), claim AS (
  SELECT wanted.type_name, wanted.payload_version
  FROM unnest(:type_names::text[], :versions::integer[]) AS wanted(type_name, payload_version)
  WHERE NOT EXISTS (SELECT FROM /*schema*/paused_type paused WHERE paused.type_name = wanted.type_name)
), line AS (
  SELECT claim.*, best.rank, 1 AS hops
  FROM claim CROSS JOIN LATERAL (
    /*include fragments/claimable_jobs*/
      AND type_name = claim.type_name AND payload_version = claim.payload_version
    ORDER BY rank, scheduled_at, id LIMIT 1
  ) best
  UNION ALL
  SELECT line.type_name, line.payload_version, next.rank, line.hops + 1
  FROM line CROSS JOIN LATERAL (
    /*include fragments/claimable_jobs*/
      AND type_name = line.type_name AND payload_version = line.payload_version AND rank > line.rank
    ORDER BY rank, scheduled_at, id LIMIT 1
  ) next
  WHERE line.hops < :most AND (:ageing::double precision IS NOT NULL OR line.rank < (SELECT rank FROM asked))
), until AS (
  -- Up to when those of a rank have come before it.
  SELECT line.*, asked.id, CASE
    WHEN line.rank = asked.rank THEN asked.scheduled_at
    WHEN :ageing::double precision IS NULL
      THEN CASE WHEN line.rank < asked.rank THEN 'infinity'::timestamptz ELSE '-infinity'::timestamptz END
    ELSE to_timestamp(least(250000000000, greatest(-60000000000,
      date_part('epoch', asked.scheduled_at)
        + (asked.rank::double precision - line.rank) * :ageing::double precision)))
  END AS moment
  FROM line CROSS JOIN asked
)
SELECT coalesce(:now::timestamptz, statement_timestamp()),
  coalesce(asked.is_held, false),
  (SELECT count(*) FROM (
    SELECT FROM /*schema*/job WHERE /*include fragments/placed*/ AND limit_key = asked.limit_key
    UNION ALL
    SELECT FROM /*schema*/limit_place place WHERE place.key = asked.limit_key
    LIMIT :most) holding),
  (SELECT /*schema*/readable(paced.wake_at) FROM /*schema*/limit_key paced WHERE paced.key = asked.limit_key),
  CASE
    WHEN asked.is_held THEN (SELECT count(*) FROM (
      SELECT FROM /*schema*/job
      WHERE /*include fragments/held*/ AND limit_key = asked.limit_key
        AND (rank, scheduled_at, id) < (asked.rank, asked.scheduled_at, asked.id)
      LIMIT :most) held)
    WHEN asked.status = 'pending' THEN (SELECT count(*) FROM (
      SELECT FROM until CROSS JOIN LATERAL (
        /*include fragments/claimable_jobs*/
          AND type_name = until.type_name AND payload_version = until.payload_version AND rank = until.rank
          AND (scheduled_at, id) < (until.moment, until.id)
        LIMIT :most
      ) before
      LIMIT :most) ahead)
    ELSE 0 END
FROM (SELECT) answer LEFT JOIN asked ON true
