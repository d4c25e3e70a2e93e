-- How many jobs of some types are blocked, pending and so on, counted up to :most; and of what some limits hold, so many for
-- each, by type, and for how many seconds the oldest of these has been due. ORDER BY has it use the index that is in that
-- order, whatever is known of the table.
SELECT 'blocked' AS kind, asked.name AS counted, asked.name AS type_name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job
    WHERE status = 'blocked' AND type_name BETWEEN asked.name AND asked.name
    ORDER BY type_name LIMIT :most
  ) found) AS jobs, NULL::double precision AS seconds
FROM unnest(:blocked::text[]) AS asked(name)
UNION ALL
SELECT 'pending', asked.name, asked.name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job
    WHERE status = 'pending' AND NOT deferred AND (limit_key IS NULL OR admitted_after = attempt) AND type_name = asked.name
    ORDER BY payload_version, rank, scheduled_at, id LIMIT :most
  ) found), NULL
FROM unnest(:pending::text[]) AS asked(name)
UNION ALL
SELECT 'scheduled', asked.name, asked.name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job
    WHERE status = 'pending' AND deferred AND type_name = asked.name
    ORDER BY scheduled_at LIMIT :most
  ) found), NULL
FROM unnest(:scheduled::text[]) AS asked(name)
UNION ALL
SELECT 'running', asked.name, asked.name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job
    WHERE status = 'running' AND type_name BETWEEN asked.name AND asked.name
    ORDER BY type_name LIMIT :most
  ) found), NULL
FROM unnest(:running::text[]) AS asked(name)
UNION ALL
SELECT 'failed', asked.name, asked.name, (
  SELECT count(*) FROM (
    SELECT 1 FROM /*schema*/job
    WHERE status = 'failed' AND type_name = asked.name
    ORDER BY ended_at, id LIMIT :most
  ) found), NULL
FROM unnest(:failed::text[]) AS asked(name)
UNION ALL
SELECT 'held', asked.name, found.type_name, count(*),
  extract(epoch FROM coalesce(:now::timestamptz, statement_timestamp())
    - /*schema*/readable(min(found.scheduled_at)))::double precision
FROM unnest(:held::text[]) AS asked(name) CROSS JOIN LATERAL (
  SELECT type_name, scheduled_at FROM /*schema*/job
  WHERE /*include fragments/held*/ AND limit_key >= asked.name || '/' AND limit_key < asked.name || '0'
  ORDER BY limit_key, rank, scheduled_at, id LIMIT :most
) found
GROUP BY asked.name, found.type_name
