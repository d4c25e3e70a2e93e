-- Among the steps of the newest chains, those whose chain is gone: its first job, which speaks for it.
WITH newest AS MATERIALIZED (
  SELECT id, chain_id, type_name FROM /*schema*/job WHERE chain_index > 0
  ORDER BY chain_id DESC, chain_index DESC LIMIT :most::bigint
)
SELECT 'job without chain', n.id::text, n.type_name, NULL::double precision
FROM newest n
WHERE NOT EXISTS (SELECT 1 FROM /*schema*/job h WHERE h.id = n.chain_id)
LIMIT 100
