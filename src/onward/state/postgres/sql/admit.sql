-- Give free places to held jobs; which types have jobs to take now, and what follows.
SELECT type_name, admitted, reached, next_in, is_paced
FROM /*schema*/admit(:most::integer, :after::bigint, :sweep::boolean, :now::timestamptz)
