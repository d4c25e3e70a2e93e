-- Change a schedule's time, if it is as it was read.
UPDATE /*schema*/schedule SET changed = :changed, next_at = :next_at, error = NULL
WHERE name = :name AND fingerprint = :fingerprint AND next_at IS :seen_at
RETURNING name
