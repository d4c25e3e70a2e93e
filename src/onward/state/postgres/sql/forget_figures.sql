-- Remove what is too old to be asked for.
DELETE FROM /*schema*/figure WHERE (minute, type_name, writer) IN (
  SELECT minute, type_name, writer FROM /*schema*/figure WHERE minute < :minute::integer LIMIT :limit)
