-- Start one job as start.sql does, without a list to unpack: what most calls start.
INSERT INTO /*schema*/job (
  /*include fragments/new_job_columns*/
)
VALUES (
  :id, :chain_id, :chain_index, :type_name, :payload_version, 'pending', :rank, :scheduled_at > :now, :limit_key, :input,
  :now, :scheduled_at, :origin_id, :root_id, :meta
)
ON CONFLICT (id) DO NOTHING
