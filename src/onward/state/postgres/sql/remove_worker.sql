-- A worker has stopped in order.
DELETE FROM /*schema*/worker WHERE id = :worker::text
RETURNING id
