-- Lock jobs and the headers of their chains, in the order in which settling does, and say which could not be locked at
-- once: a transaction of the application's may hold those for as long as it likes.
WITH free AS MATERIALIZED (
  SELECT id, chain_id, chain_index FROM /*schema*/job
  WHERE id = ANY(:ids::uuid[])
  ORDER BY id
  FOR NO KEY UPDATE SKIP LOCKED
), header AS MATERIALIZED (
  SELECT id FROM /*schema*/job
  WHERE id = ANY(ARRAY(SELECT chain_id FROM free WHERE chain_index > 0))
  ORDER BY id
  FOR NO KEY UPDATE SKIP LOCKED
)
SELECT job.id FROM /*schema*/job job
WHERE job.id = ANY(:ids::uuid[])
  AND NOT EXISTS (
    SELECT FROM free
    WHERE free.id = job.id AND (free.chain_index = 0 OR free.chain_id IN (SELECT header.id FROM header)))
