-- Store what the code declares, new or in place of what was read. One that has changed since then stays as it is; one
-- that `keeps` its time goes on from where it is.
INSERT INTO /*schema*/schedule AS schedule (
  name, type_name, definition, fingerprint, superseded, next_at, declared_at
)
SELECT json_extract(value, '$.name'), json_extract(value, '$.type_name'), json_extract(value, '$.definition'),
  json_extract(value, '$.fingerprint'), json_extract(value, '$.superseded'), json_extract(value, '$.next_at'), :now
FROM json_each(:said)
WHERE 1
ON CONFLICT (name) DO UPDATE SET
  type_name = excluded.type_name, definition = excluded.definition, fingerprint = excluded.fingerprint,
  superseded = excluded.superseded, declared_at = excluded.declared_at, changed = NULL, error = NULL,
  next_at = CASE
    WHEN (SELECT json_extract(s.value, '$.keeps') FROM json_each(:said) s
          WHERE json_extract(s.value, '$.name') = schedule.name)
    THEN schedule.next_at ELSE excluded.next_at END
WHERE EXISTS (
  SELECT 1 FROM json_each(:said) s
  WHERE json_extract(s.value, '$.name') = schedule.name
    AND json_extract(s.value, '$.instead_of') = schedule.fingerprint
    AND (json_extract(s.value, '$.keeps') OR json_extract(s.value, '$.seen_at') IS schedule.next_at))
RETURNING name
