-- Give free places to held jobs; which types have jobs to take now, and what follows.
SELECT type_name, admitted, reached, next_in, is_paced
-- Not long behind somebody's lock, also where no setting of a session holds: of what comes first, so that it does.
FROM (SELECT /*include fragments/impatience*/ AS patience) first
  CROSS JOIN LATERAL /*schema*/admit(CASE WHEN first.patience <> '' THEN :most::integer END, :after::bigint, :sweep::boolean, :now::timestamptz,
    :past::boolean)
