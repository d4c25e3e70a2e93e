-- The rules of all limits.
SELECT name, places, every, burst, declared, declared_at, changed_at FROM /*schema*/limit_rule ORDER BY name
