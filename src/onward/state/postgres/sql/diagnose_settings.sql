-- Settings as this role has them, with their units.
SELECT name, setting, coalesce(unit, '') FROM pg_catalog.pg_settings WHERE name = ANY(:names::text[])
