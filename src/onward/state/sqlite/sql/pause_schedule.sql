-- Have a schedule start nothing, or go on.
UPDATE /*schema*/schedule SET paused_at = CASE WHEN :paused THEN coalesce(paused_at, :now) END
WHERE name = :name
RETURNING name
