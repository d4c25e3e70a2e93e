-- Start one job that waits for nothing and has no key, for the first time; see start.sql. No arrays: their plan would be
-- made anew each time. No ON CONFLICT, which costs a look of its own.
INSERT INTO /*schema*/job (
  id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, limit_key, input, created_at,
  scheduled_at, origin_id, root_id
)
SELECT
  :id::uuid, :chain_id::uuid, :chain_index::integer, :type_name::text, :payload_version::integer, 'pending',
  :rank::integer, coalesce(:at::timestamptz, clock.at + make_interval(secs => :delay::double precision)) > clock.at,
  :limit_key::text, :input::text::json, clock.at,
  coalesce(:at::timestamptz, clock.at + make_interval(secs => :delay::double precision)), :origin_id::uuid,
  :root_id::uuid
FROM (SELECT coalesce(:now::timestamptz, statement_timestamp()) AS at) clock
