-- Remove a schedule; code that still declares it brings it back.
DELETE FROM /*schema*/schedule WHERE name = :name::text RETURNING name
