-- The version of the tables.
SELECT coalesce(max(version), 0) FROM /*schema*/migration
