-- Have the held jobs of a key looked at again.
INSERT INTO /*schema*/limit_wake SELECT :key WHERE NOT EXISTS (SELECT 1 FROM /*schema*/limit_wake WHERE key = :key)
