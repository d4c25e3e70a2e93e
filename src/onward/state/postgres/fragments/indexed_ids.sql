-- What waits, runs or failed, by indexes that have nothing else; or what belongs to chains.
SELECT id FROM /*schema*/job
WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt)
  AND :chain_ids::uuid[] IS NULL AND 'pending' = ANY(:statuses::text[])
  AND (:indexed_types::text[] IS NULL OR type_name = ANY(:indexed_types::text[]))
UNION ALL
SELECT id FROM /*schema*/job
WHERE /*include fragments/held*/ AND :chain_ids::uuid[] IS NULL AND 'pending' = ANY(:statuses::text[])
  AND (:indexed_types::text[] IS NULL OR type_name = ANY(:indexed_types::text[]))
UNION ALL
SELECT id FROM /*schema*/job
WHERE status = 'pending' AND deferred AND :chain_ids::uuid[] IS NULL AND 'pending' = ANY(:statuses::text[])
  AND (:indexed_types::text[] IS NULL OR type_name = ANY(:indexed_types::text[]))
UNION ALL
SELECT id FROM /*schema*/job
WHERE status = 'running' AND :chain_ids::uuid[] IS NULL AND 'running' = ANY(:statuses::text[])
  AND (:indexed_types::text[] IS NULL OR type_name = ANY(:indexed_types::text[]))
UNION ALL
SELECT id FROM /*schema*/job
WHERE status = 'failed' AND :chain_ids::uuid[] IS NULL AND 'failed' = ANY(:statuses::text[])
  AND (:indexed_types::text[] IS NULL OR type_name = ANY(:indexed_types::text[]))
UNION ALL
SELECT DISTINCT asked.id FROM unnest(:chain_ids::uuid[]) AS asked(id)
UNION ALL
SELECT id FROM /*schema*/job WHERE chain_id = ANY(:chain_ids::uuid[]) AND chain_index > 0
