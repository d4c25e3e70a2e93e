-- Set the rule of a limit, as code declares it, or at run time.
INSERT INTO /*schema*/limit_rule (name, places, every, burst, declared, declared_at)
VALUES (:name, :places, :every, :burst, :figures, :now)
ON CONFLICT (name) DO UPDATE SET
  places = excluded.places, every = excluded.every, burst = excluded.burst,
  previous = CASE WHEN :declared THEN declared ELSE previous END,
  declared = CASE WHEN :declared THEN :figures ELSE declared END,
  declared_at = CASE WHEN :declared THEN :now ELSE declared_at END,
  changed_at = CASE WHEN NOT :declared AND :figures <> declared THEN :now END
