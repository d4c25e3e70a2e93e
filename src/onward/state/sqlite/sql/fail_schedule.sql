-- Say why a tick could not be started, if it is still to be.
UPDATE /*schema*/schedule SET error = :error WHERE name = :name AND next_at = :tick AND error IS NOT :error
