-- Start first jobs of chains that differ in nothing but id and input, for the first time; see start.sql, of whose cost
-- this is less than two thirds.
INSERT INTO /*schema*/job (
  id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, limit_key, input, created_at,
  scheduled_at, origin_id, root_id
)
SELECT
  n.id, n.id, 0, :type_name::text, :payload_version::integer, 'pending', :rank::integer,
  coalesce(:at::timestamptz, clock.at + make_interval(secs => :delay::double precision)) > clock.at, :limit_key::text,
  n.input::json, clock.at, coalesce(:at::timestamptz, clock.at + make_interval(secs => :delay::double precision)),
  :origin_id::uuid, coalesce(:root_id::uuid, n.id)
FROM (SELECT coalesce(:now::timestamptz, statement_timestamp()) AS at) clock,
  unnest(:ids::uuid[], :inputs::text[]) AS n(id, input)
