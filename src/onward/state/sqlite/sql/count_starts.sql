-- How many jobs of each type have an id in a range, which is made of the time; so many at most, and the last of them.
SELECT type_name, count(*), max(max(id)) OVER () FROM (
  SELECT id, type_name FROM /*schema*/job WHERE id > :after AND id < :before ORDER BY id LIMIT :limit
)
GROUP BY type_name
