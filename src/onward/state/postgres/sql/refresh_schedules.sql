-- Live code still declares these. SKIP LOCKED: whoever has one says so too, or will let it go before it is forgotten.
WITH known AS (
  SELECT schedule.name
  FROM json_to_recordset(:known::json) AS known(name text, fingerprint text)
    JOIN /*schema*/schedule schedule ON schedule.name = known.name AND schedule.fingerprint = known.fingerprint
  WHERE schedule.declared_at
    < coalesce(:now::timestamptz, statement_timestamp()) - make_interval(secs => :older_than::double precision)
  ORDER BY schedule.name
  FOR NO KEY UPDATE OF schedule SKIP LOCKED
)
UPDATE /*schema*/schedule schedule SET declared_at = coalesce(:now::timestamptz, statement_timestamp())
FROM known WHERE schedule.name = known.name
