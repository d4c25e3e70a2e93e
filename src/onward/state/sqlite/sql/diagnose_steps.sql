-- Among the steps of the newest chains, those whose chain is gone: its first job, which speaks for it.
WITH newest AS MATERIALIZED (
  SELECT id, chain_id, type_name FROM /*schema*/job WHERE chain_index > 0
  ORDER BY chain_id DESC, chain_index DESC LIMIT :most
)
SELECT 'job without chain', n.id, n.type_name, NULL
FROM newest AS n
WHERE NOT EXISTS (SELECT 1 FROM /*schema*/job AS h WHERE h.id = n.chain_id)
LIMIT 100
