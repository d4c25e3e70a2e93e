-- Of these chains, those that are in the history, the last to end first.
SELECT
  /*include fragments/history_chain_columns*/
FROM /*schema*/history header
/*include fragments/history_chains*/
-- The first job by its id, not its index: by that the planner may come to look through all of an index of those.
WHERE header.chain_id = ANY(:chain_ids::uuid[]) AND header.id = header.chain_id
  AND (:type_names::text[] IS NULL OR header.type_name = ANY(:type_names::text[]))
  AND header.chain_failed = ANY(:failed::boolean[])
  AND header.chain_ended_at >= coalesce(:ended_from::timestamptz, '-infinity')
  AND header.chain_ended_at < coalesce(:ended_before::timestamptz, 'infinity')
ORDER BY header.chain_ended_at DESC, header.id DESC
