-- Store what the code declares, new or in place of what was read. One that has changed since then stays as it is; one
-- that `keeps` its time goes on from where it is.
INSERT INTO /*schema*/schedule AS schedule (
  name, type_name, definition, fingerprint, superseded, next_at, declared_at
)
SELECT said.name, said.type_name, said.definition, said.fingerprint, said.superseded, said.next_at,
  coalesce(:now::timestamptz, statement_timestamp())
FROM json_to_recordset(:said::json) AS said(
  name text, type_name text, definition text, fingerprint text, superseded text, next_at timestamptz, instead_of text)
-- Before any row is locked, since those come from here.
WHERE (SELECT CASE WHEN :impatient::boolean THEN /*include fragments/impatience*/ IS NOT NULL ELSE true END)
ORDER BY said.name
ON CONFLICT (name) DO UPDATE SET
  type_name = excluded.type_name, definition = excluded.definition, fingerprint = excluded.fingerprint,
  superseded = excluded.superseded, declared_at = excluded.declared_at, changed = NULL, error = NULL,
  next_at = CASE
    WHEN (SELECT s.keeps FROM json_to_recordset(:said::json) AS s(name text, keeps boolean) WHERE s.name = schedule.name)
    THEN schedule.next_at ELSE excluded.next_at END
WHERE EXISTS (
  SELECT FROM json_to_recordset(:said::json) AS s(name text, instead_of text, keeps boolean, seen_at timestamptz)
  WHERE s.name = schedule.name AND s.instead_of = schedule.fingerprint
    AND (s.keeps OR s.seen_at IS NOT DISTINCT FROM schedule.next_at))
RETURNING schedule.name
