-- The rules of all limits.
SELECT name, places, every, burst, declared, /*schema*/readable(declared_at), /*schema*/readable(changed_at) FROM /*schema*/limit_rule ORDER BY name
