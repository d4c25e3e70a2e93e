-- What is declared of limits, and what was before the last change; nothing of one that nobody can go by.
SELECT name, CASE WHEN /*include fragments/sound_rule*/ THEN CAST(declared AS BLOB) END, CAST(previous AS BLOB),
  CASE WHEN typeof(declared_at) = 'integer' THEN declared_at ELSE 0 END
FROM /*schema*/limit_rule rule WHERE name IN (SELECT value FROM json_each(:names))
