-- Set the rule of a limit, as code declares it, or at run time (`declared` is NULL).
INSERT INTO /*schema*/limit_rule (name, places, every, burst, declared, declared_at)
VALUES (:name, :places, :every, :burst, :declared, :now)
ON CONFLICT (name) DO UPDATE SET
  places = excluded.places, every = excluded.every, burst = excluded.burst,
  previous = CASE WHEN :declared IS NULL THEN previous ELSE declared END,
  declared = coalesce(:declared, declared),
  declared_at = CASE WHEN :declared IS NULL THEN declared_at ELSE :now END,
  changed_at = CASE WHEN :declared IS NULL THEN :now END
