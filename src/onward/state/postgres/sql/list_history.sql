-- A page of the chains in the history, the last to end first: of each type, and of what completed and what failed, a range of
-- an index.
WITH RECURSIVE place AS (
  -- Where an id was used again, it may be there twice: then behind both, so as to come to an end.
  SELECT CASE WHEN :after::uuid IS NULL THEN 'infinity'::timestamptz ELSE (
      SELECT h.chain_ended_at FROM /*schema*/history h WHERE h.chain_id = :after::uuid ORDER BY h.chain_ended_at LIMIT 1)
    END AS ended_at, coalesce(:after::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff') AS id
), type AS (
  -- Those that there are, where none are named: from each to the next.
  (SELECT h.type_name FROM /*schema*/history h WHERE :type_names::text[] IS NULL AND h.chain_index = 0
   ORDER BY h.type_name LIMIT 1)
  UNION ALL
  SELECT (SELECT h.type_name FROM /*schema*/history h WHERE h.chain_index = 0 AND h.type_name > type.type_name
          ORDER BY h.type_name LIMIT 1)
  FROM type WHERE type.type_name IS NOT NULL
), wanted AS (
  SELECT type_name FROM type WHERE type_name IS NOT NULL UNION SELECT unnest(:type_names::text[])
), header AS MATERIALIZED (
  SELECT found.* FROM place, wanted, unnest(:failed::boolean[]) failed, LATERAL (
    SELECT h.id, h.type_name, h.created_at, h.chain_ended_at FROM /*schema*/history h
    WHERE h.chain_index = 0 AND h.type_name = wanted.type_name AND h.chain_failed = failed
      AND h.chain_ended_at >= coalesce(:ended_from::timestamptz, '-infinity')
      AND h.chain_ended_at < coalesce(:ended_before::timestamptz, 'infinity')
      AND (h.chain_ended_at, h.id) < (place.ended_at, place.id)
    ORDER BY h.chain_ended_at DESC, h.id DESC LIMIT :limit) found
  ORDER BY found.chain_ended_at DESC, found.id DESC LIMIT :limit
)
SELECT
  /*include fragments/history_chain_columns*/
FROM header
/*include fragments/history_chains*/
ORDER BY header.chain_ended_at DESC, header.id DESC
