-- Slots were given out at another rate: the new one begins after its burst.
UPDATE /*schema*/limit_key SET wake_at = NULL, tat = min(tat, :tat) WHERE key >= :first AND key < :until
