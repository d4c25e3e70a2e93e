-- What is declared of limits, and what was before the last change.
SELECT name, declared, previous, declared_at FROM /*schema*/limit_rule
WHERE name IN (SELECT value FROM json_each(:names))
