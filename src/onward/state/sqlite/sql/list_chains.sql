-- A page of chains, newest first; the status is that of the job the chain has come to.
-- A blob sorts behind every text: the first page is a range like the others, found without reading what is above it.
SELECT header.id, header.type_name, header.created_at, header.chain_ended_at, /*include fragments/job_columns*/
FROM /*schema*/job header
  CROSS JOIN /*schema*/job job ON job.id = coalesce((
    SELECT latest.id FROM /*schema*/job latest
    WHERE latest.chain_id = header.id AND latest.chain_index > 0
    ORDER BY latest.chain_index DESC LIMIT 1
  ), header.id)
WHERE header.chain_index = 0 AND header.id < coalesce(:after, x'ffffffffffffffffffff')
  AND (:type_names IS NULL OR header.type_name IN (SELECT value FROM json_each(:type_names)))
  AND (:statuses IS NULL OR job.status IN (SELECT value FROM json_each(:statuses)))
  AND (:chain_ids IS NULL OR header.id IN (SELECT value FROM json_each(:chain_ids)))
  AND (:root_ids IS NULL OR header.root_id IN (SELECT value FROM json_each(:root_ids)))
  AND (:created_from IS NULL OR header.created_at >= :created_from)
  AND (:created_before IS NULL OR header.created_at < :created_before)
ORDER BY header.id DESC
LIMIT :limit
