-- A page of chains, newest first; the status is that of the job the chain has come to.
SELECT header.id, header.type_name, /*schema*/readable(header.created_at),
  /*schema*/readable(header.chain_ended_at), /*include fragments/job_columns*/
FROM /*schema*/job header,
  LATERAL (
    SELECT latest.id FROM /*schema*/job latest
    WHERE latest.id = header.id OR (latest.chain_id = header.id AND latest.chain_index > 0)
    ORDER BY latest.chain_index DESC LIMIT 1
  ) current
  JOIN /*schema*/job job ON job.id = current.id
WHERE header.chain_index = 0
  AND (:after::uuid IS NULL OR header.id < :after::uuid)
  AND (:type_names::text[] IS NULL OR header.type_name = ANY(:type_names::text[]))
  AND (:statuses::text[] IS NULL OR job.status = ANY(:statuses::text[]))
  AND (:chain_ids::uuid[] IS NULL OR header.id = ANY(:chain_ids::uuid[]))
  AND (:root_ids::uuid[] IS NULL OR header.root_id = ANY(:root_ids::uuid[]))
  AND (:created_from::timestamptz IS NULL OR header.created_at >= :created_from::timestamptz)
  AND (:created_before::timestamptz IS NULL OR header.created_at < :created_before::timestamptz)
ORDER BY header.id DESC
LIMIT :limit
