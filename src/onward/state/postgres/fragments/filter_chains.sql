-- By the first job, the header; the status is that of the job the chain has come to.
AND (:type_names::text[] IS NULL OR header.type_name = ANY(:type_names::text[]))
AND (:statuses::text[] IS NULL OR job.status = ANY(:statuses::text[]))
AND (:chain_ids::uuid[] IS NULL OR header.id = ANY(:chain_ids::uuid[]))
AND (:root_ids::uuid[] IS NULL OR header.root_id = ANY(:root_ids::uuid[]))
AND (:created_from::timestamptz IS NULL OR header.created_at >= :created_from::timestamptz)
AND (:created_before::timestamptz IS NULL OR header.created_at < :created_before::timestamptz)
