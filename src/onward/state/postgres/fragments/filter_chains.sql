-- By the first job, the header; the status is that of the job the chain has come to.
AND (:type_names::text[] IS NULL OR header.type_name = ANY(:type_names::text[]))
AND (:statuses::text[] IS NULL OR job.status = ANY(:statuses::text[]))
-- What the header says of it: as a rule there is no need to look for that job.
AND (:statuses::text[] IS NULL OR CASE
  WHEN header.status NOT IN ('completed') THEN header.status = ANY(:statuses::text[])
  WHEN header.chain_ended_at IS NULL THEN true
  WHEN header.chain_failed THEN 'failed' = ANY(:statuses::text[])
  ELSE header.status = ANY(:statuses::text[]) END)
AND (:chain_ids::uuid[] IS NULL OR header.id = ANY(:chain_ids::uuid[]))
AND (:root_ids::uuid[] IS NULL OR header.root_id = ANY(:root_ids::uuid[]))
AND (:created_from::timestamptz IS NULL OR header.created_at >= :created_from::timestamptz)
AND (:created_before::timestamptz IS NULL OR header.created_at < :created_before::timestamptz)
AND (:older_than::float8 IS NULL
  OR header.created_at <= coalesce(:now::timestamptz, statement_timestamp()) - make_interval(secs => :older_than::float8))
AND (:newer_than::float8 IS NULL
  OR header.created_at > coalesce(:now::timestamptz, statement_timestamp()) - make_interval(secs => :newer_than::float8))
