-- By the first job, the header; the status is that of the job the chain has come to.
AND (:type_names IS NULL OR header.type_name IN (SELECT value FROM json_each(:type_names)))
AND (:statuses IS NULL OR job.status IN (SELECT value FROM json_each(:statuses)))
AND (:chain_ids IS NULL OR header.id IN (SELECT value FROM json_each(:chain_ids)))
AND (:root_ids IS NULL OR header.root_id IN (SELECT value FROM json_each(:root_ids)))
AND (:created_from IS NULL OR header.created_at >= :created_from)
AND (:created_before IS NULL OR header.created_at < :created_before)
