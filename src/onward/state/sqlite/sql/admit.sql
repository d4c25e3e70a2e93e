-- Give places to the first of the held jobs of a key. As if they had come now: who has many places does not come before
-- those who have one. A job with several limits goes on to the next, until it has a place of the last.
UPDATE /*schema*/job SET
  admitted_after = iif(ready.next IS NULL, attempt, admitted_after),
  scheduled_at = iif(ready.next IS NULL, max(scheduled_at, :now), scheduled_at),
  limit_key = coalesce(ready.next, limit_key)
FROM (
  SELECT held.rowid AS place, (
      SELECT later.value FROM json_each(held.keys) here CROSS JOIN json_each(held.keys) later
      WHERE here.value = held.limit_key AND later.key = here.key + 1) AS next
  FROM (
    SELECT rowid, limit_key, iif(json_valid(limit_keys), limit_keys, NULL) AS keys FROM /*schema*/job INDEXED BY /*schema*/job_held
    WHERE /*include fragments/held_job*/ AND limit_key = :key
      AND type_name NOT IN (SELECT type_name FROM /*schema*/paused_type)
      AND (type_name, payload_version) NOT IN (SELECT type_name, payload_version FROM /*schema*/unserved_type)
    ORDER BY rank, scheduled_at, id
    LIMIT :most
  ) held
) ready
WHERE /*schema*/job.rowid = ready.place
RETURNING type_name, id, limit_key
