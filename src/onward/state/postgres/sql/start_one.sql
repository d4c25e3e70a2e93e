-- Start one job that waits for nothing and has no key, for the first time; see start.sql. No arrays: their plan would be
-- made anew each time. No ON CONFLICT, which costs a look of its own.
INSERT INTO /*schema*/job (
  /*include fragments/new_job_columns*/
)
SELECT
  /*include fragments/new_job_values*/
FROM (
  SELECT :id::uuid AS id, :chain_id::uuid AS chain_id, :chain_index::integer AS chain_index, :type_name::text AS type_name,
    :payload_version::integer AS payload_version, :rank::integer AS rank, :limit_key::text AS limit_key,
    :input::text AS input, :delay::double precision AS delay, :at::timestamptz AS scheduled_at,
    :origin_id::uuid AS origin_id, :root_id::uuid AS root_id, :meta::text AS meta, coalesce(:now::timestamptz, statement_timestamp()) AS at
) wanted
