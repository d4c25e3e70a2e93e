-- Jobs that run by a lease which ran out long ago: some worker that takes the type should have taken them back.
SELECT 'expired lease', id, type_name, (:now - leased_until) / 1000000.0
FROM /*schema*/job
WHERE status = 'running' AND (leased_until IS NULL OR leased_until < :now - :late)
LIMIT 100
