-- Say why a tick could not be started, if it is still to be.
UPDATE /*schema*/schedule SET error = :error::text
WHERE name = :name::text AND next_at = :tick::timestamptz AND error IS DISTINCT FROM :error::text
