-- Jobs that run by a lease which ran out long ago: some worker that takes the type should have taken them back.
SELECT 'expired lease', j.id::text, j.type_name,
  extract(epoch FROM coalesce(:now::timestamptz, statement_timestamp()) - j.leased_until)::double precision
FROM /*schema*/job j
WHERE j.status = 'running' AND (
  j.leased_until IS NULL
  OR j.leased_until < coalesce(:now::timestamptz, statement_timestamp()) - make_interval(secs => :late::double precision))
LIMIT 100
