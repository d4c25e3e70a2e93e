-- The keys that were woken, once.
DELETE FROM /*schema*/limit_wake WHERE key IN (SELECT key FROM /*schema*/limit_wake LIMIT :most) RETURNING key
