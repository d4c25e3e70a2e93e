-- Drop a part of the history that nobody wants any more; when it began.
SELECT /*schema*/drop_history(coalesce(:now::timestamptz, statement_timestamp()))
