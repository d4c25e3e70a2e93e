AND (:type_names::text[] IS NULL OR job.type_name = ANY(:type_names::text[]))
AND (:statuses::text[] IS NULL OR job.status = ANY(:statuses::text[]))
AND (:chain_ids::uuid[] IS NULL OR job.chain_id = ANY(:chain_ids::uuid[]))
AND (:root_ids::uuid[] IS NULL OR job.root_id = ANY(:root_ids::uuid[]))
AND (:created_from::timestamptz IS NULL OR job.created_at >= :created_from::timestamptz)
AND (:created_before::timestamptz IS NULL OR job.created_at < :created_before::timestamptz)
AND (:older_than::float8 IS NULL
  OR job.created_at <= coalesce(:now::timestamptz, statement_timestamp()) - make_interval(secs => :older_than::float8))
AND (:newer_than::float8 IS NULL
  OR job.created_at > coalesce(:now::timestamptz, statement_timestamp()) - make_interval(secs => :newer_than::float8))
