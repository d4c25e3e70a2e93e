-- Change a schedule's time, if it is as it was read.
UPDATE /*schema*/schedule SET changed = :changed::text, next_at = :next_at::timestamptz, error = NULL
WHERE name = :name::text AND fingerprint = :fingerprint::text AND next_at IS NOT DISTINCT FROM :seen_at::timestamptz
RETURNING name
