-- By the first job, the header; the status is that of the job the chain has come to.
AND (:type_names IS NULL OR header.type_name IN (SELECT value FROM json_each(:type_names)))
AND (:statuses IS NULL OR job.status IN (SELECT value FROM json_each(:statuses)))
-- What the header says of it: as a rule there is no need to look for that job.
AND (:statuses IS NULL OR CASE
  WHEN header.status NOT IN ('completed') THEN header.status IN (SELECT value FROM json_each(:statuses))
  WHEN header.chain_ended_at IS NULL THEN true
  WHEN header.chain_failed THEN 'failed' IN (SELECT value FROM json_each(:statuses))
  ELSE header.status IN (SELECT value FROM json_each(:statuses)) END)
AND (:chain_ids IS NULL OR header.id IN (SELECT value FROM json_each(:chain_ids)))
AND (:root_ids IS NULL OR header.root_id IN (SELECT value FROM json_each(:root_ids)))
AND (:created_from IS NULL OR header.created_at >= :created_from)
AND (:created_before IS NULL OR header.created_at < :created_before)
AND (:created_by IS NULL OR header.created_at <= :created_by)
AND (:created_after IS NULL OR header.created_at > :created_after)
