-- Delete, or move to the history, a batch of chains that have ended, from a place in the order of ids on; how many, and how
-- far that was.
SELECT completed, failed, jobs, reached::text, is_end, moved, problem
FROM /*schema*/prune(
  :type_names::text[], :keep_completed::double precision[], :keep_failed::double precision[], :place::uuid,
  :before::double precision, :most_chains::integer, :most_rows::integer,
  coalesce(:now::timestamptz, statement_timestamp()), :keep_history::double precision[])
