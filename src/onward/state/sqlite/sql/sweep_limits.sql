-- Somebody looks after the places of types that nobody serves.
UPDATE /*schema*/limit_sweep SET swept_at = :now
