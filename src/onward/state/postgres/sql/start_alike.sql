-- Start first jobs of chains that differ in nothing but id and input, for the first time; see start.sql, of whose cost
-- this is less than two thirds.
INSERT INTO /*schema*/job (
  /*include fragments/new_job_columns*/
)
SELECT
  /*include fragments/new_job_values*/
FROM (
  SELECT given.id, given.id AS chain_id, 0 AS chain_index, :type_name::text AS type_name,
    :payload_version::integer AS payload_version, :rank::integer AS rank, :limit_key::text AS limit_key, given.input,
    :delay::double precision AS delay, :at::timestamptz AS scheduled_at, :origin_id::uuid AS origin_id,
    coalesce(:root_id::uuid, given.id) AS root_id, :meta::text AS meta, coalesce(:now::timestamptz, statement_timestamp()) AS at
  FROM unnest(:ids::uuid[], :inputs::text[]) AS given(id, input)
) wanted
