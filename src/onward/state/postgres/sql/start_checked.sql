-- Start jobs with a deduplication key, blockers or an id of the caller's; a refusal is a row with a problem.
SELECT item, id, duplicate, status, problem
FROM /*schema*/start(:items::text::json, coalesce(:now::timestamptz, statement_timestamp()))
ORDER BY item
