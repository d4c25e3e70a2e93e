-- How many jobs of each type have an id in a range, which is made of the time; so many at most, and the last of them.
WITH found AS MATERIALIZED (
  SELECT id, type_name FROM /*schema*/job
  WHERE id > :after::uuid AND id < :before::uuid
  ORDER BY id LIMIT :limit
)
SELECT type_name, count(*)::integer, (SELECT id::text FROM found ORDER BY id DESC LIMIT 1) FROM found GROUP BY type_name
