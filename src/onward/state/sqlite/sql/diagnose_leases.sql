-- Jobs that run by a lease which ran out long ago: some worker that takes the type should have taken them back.
-- Not those that the guardian of a dead worker has let go of, of which it is not known how long ago that was.
SELECT 'expired lease', id, type_name, (:now - leased_until) / 1000000.0
FROM /*schema*/job
WHERE status = 'running' AND (leased_until IS NULL OR leased_until < :now - :late AND leased_until <> 0)
LIMIT 100
