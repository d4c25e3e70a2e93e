-- For how many seconds the oldest job of each type that may be taken has been due: one seek for each version and rank that
-- there is, whatever the backlog; what is held by limits is gone through.
SELECT asked.name,
  extract(epoch FROM coalesce(:now::timestamptz, statement_timestamp())
    - /*schema*/readable(min(head.scheduled_at)))::double precision
FROM unnest(:type_names::text[]) AS asked(name) CROSS JOIN LATERAL (
  WITH RECURSIVE first AS (
    (SELECT payload_version, rank, scheduled_at FROM /*schema*/job
     WHERE type_name = asked.name AND status = 'pending' AND NOT deferred
       AND (limit_key IS NULL OR admitted_after = attempt)
     ORDER BY payload_version, rank, scheduled_at LIMIT 1)
    UNION ALL
    SELECT following.* FROM first CROSS JOIN LATERAL (
      SELECT payload_version, rank, scheduled_at FROM /*schema*/job
      WHERE type_name = asked.name AND status = 'pending' AND NOT deferred
        AND (limit_key IS NULL OR admitted_after = attempt)
        AND (payload_version, rank) > (first.payload_version, first.rank)
      ORDER BY payload_version, rank, scheduled_at LIMIT 1
    ) following
  )
  SELECT scheduled_at FROM first
  UNION ALL
  SELECT min(scheduled_at) FROM /*schema*/job WHERE /*include fragments/held*/ AND type_name = asked.name
) head
WHERE head.scheduled_at IS NOT NULL
GROUP BY asked.name
