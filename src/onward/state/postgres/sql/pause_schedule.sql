-- Have a schedule start nothing, or go on.
UPDATE /*schema*/schedule SET
  paused_at = CASE WHEN :paused::boolean THEN coalesce(paused_at, :now::timestamptz, statement_timestamp()) END
WHERE name = :name::text
RETURNING name
