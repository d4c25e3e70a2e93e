-- Live code still declares these.
UPDATE /*schema*/schedule AS schedule SET declared_at = :now
WHERE schedule.declared_at < :now - :older_than * 1000000 AND EXISTS (
  SELECT 1 FROM json_each(:known) known
  WHERE json_extract(known.value, '$.name') = schedule.name
    AND json_extract(known.value, '$.fingerprint') = schedule.fingerprint)
