-- Take over expired leases of the types given, oldest first, to settle them as crashes. A running job without a lease, which
-- only a hand can have made, counts as expired.
-- SKIP LOCKED: a row that its holder is completing at this moment is alive. Also says when to look again: at once, if
-- there are more than asked for; at the next expiry; or, where a lease ran out and the row is locked (a long complete()),
-- after a quarter of the reaper's lease.
WITH expired AS (
  SELECT id FROM /*schema*/job
  WHERE status = 'running' AND type_name = ANY(:type_names::text[])
    AND (leased_until < coalesce(:now::timestamptz, statement_timestamp()) OR leased_until IS NULL)
    AND NOT id = ANY(:held_here::uuid[])
  ORDER BY leased_until, id
  LIMIT :limit
  FOR NO KEY UPDATE SKIP LOCKED
), reaped AS (
  UPDATE /*schema*/job job SET
    ended_at = NULL,
    leased_by = :worker::text,
    leased_until = coalesce(:now::timestamptz, statement_timestamp()) + make_interval(secs => :lease::double precision)
  FROM expired WHERE job.id = expired.id
  RETURNING
    /*include fragments/taken_columns*/
)
SELECT reaped.*, NULL::double precision AS next_in FROM reaped
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
  CASE WHEN (SELECT count(*) FROM expired) >= :limit THEN 0 ELSE min(
    CASE WHEN leased_until > coalesce(:now::timestamptz, statement_timestamp())
      THEN extract(epoch FROM
        /*schema*/readable(leased_until) - coalesce(:now::timestamptz, statement_timestamp()))::double precision
      ELSE :lease::double precision / 4 END) END
FROM /*schema*/job
WHERE status = 'running' AND type_name = ANY(:type_names::text[]) AND leased_by IS DISTINCT FROM :worker::text
  AND NOT id IN (SELECT id FROM expired)
