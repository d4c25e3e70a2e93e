-- What the workers that live take. One whose promise ran out lately may have been kept from writing, by whoever has the lock.
served AS MATERIALIZED (
  SELECT taken.key AS type_name, version.value AS payload_version
  FROM /*schema*/worker worker
    -- By iif: whatever a hand has written there.
    CROSS JOIN json_each(iif(json_valid(worker.types), worker.types, '{}')) taken
    CROSS JOIN json_each(iif(taken.type = 'array', taken.value, '[]')) version
  WHERE worker.seen_at <= :now + CAST(:ahead * 1000000 AS INTEGER) AND NOT worker.is_stopping
    AND worker.alive_until >= :now - CAST(:lately * 1000000 AS INTEGER)
)
