-- The keys that were woken, once; as bytes, since a hand may have written anything there.
DELETE FROM /*schema*/limit_wake WHERE key IN (SELECT key FROM /*schema*/limit_wake LIMIT :most) RETURNING CAST(key AS BLOB)
