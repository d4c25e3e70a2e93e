-- Start jobs that wait for nothing and have no key, in the order given.
-- DO NOTHING: the ids are ours, so a row that exists is this very start, repeated after a commit of unknown outcome.
INSERT INTO /*schema*/job (
  /*include fragments/new_job_columns*/
)
SELECT
  /*include fragments/new_job_values*/
FROM (
  SELECT given.*, coalesce(:now::timestamptz, statement_timestamp()) AS at
  FROM unnest(
    :ids::uuid[], :chain_ids::uuid[], :chain_indexes::integer[], :type_names::text[], :payload_versions::integer[],
    :ranks::integer[], :limit_keys::text[], :inputs::text[], :delays::double precision[], :ats::timestamptz[],
    :origin_ids::uuid[], :root_ids::uuid[], :metas::text[]
  ) AS given(id, chain_id, chain_index, type_name, payload_version, rank, limit_key, input, delay, scheduled_at,
             origin_id, root_id, meta)
) wanted
ON CONFLICT (id) DO NOTHING
