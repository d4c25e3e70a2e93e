-- A worker was seen to die: it keeps no promise.
UPDATE /*schema*/worker
SET alive_until = least(alive_until, coalesce(:now::timestamptz, statement_timestamp()) - interval '1 millisecond')
WHERE id = :worker::text
RETURNING id
