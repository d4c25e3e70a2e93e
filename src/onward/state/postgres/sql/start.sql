-- Start jobs that wait for nothing and have no key, in the order given.
-- DO NOTHING: the ids are ours, so a row that exists is this very start, repeated after a commit of unknown outcome.
INSERT INTO /*schema*/job (
  id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, limit_key, input, created_at,
  scheduled_at, origin_id, root_id
)
SELECT
  n.id, n.chain_id, n.chain_index, n.type_name, n.payload_version, 'pending', n.rank,
  coalesce(n.scheduled_at, clock.at + make_interval(secs => n.delay)) > clock.at, n.limit_key, n.input::json, clock.at,
  coalesce(n.scheduled_at, clock.at + make_interval(secs => n.delay)), n.origin_id, n.root_id
FROM (SELECT coalesce(:now::timestamptz, statement_timestamp()) AS at) clock,
  unnest(
    :ids::uuid[], :chain_ids::uuid[], :chain_indexes::integer[], :type_names::text[], :payload_versions::integer[],
    :ranks::integer[], :limit_keys::text[], :inputs::text[], :delays::double precision[], :ats::timestamptz[],
    :origin_ids::uuid[], :root_ids::uuid[]
  ) AS n(id, chain_id, chain_index, type_name, payload_version, rank, limit_key, input, delay, scheduled_at, origin_id,
         root_id)
ON CONFLICT (id) DO NOTHING
