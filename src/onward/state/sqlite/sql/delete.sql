-- Delete whole chains.
DELETE FROM /*schema*/job
WHERE id IN (
  SELECT value FROM json_each(:chain_ids)
  UNION ALL
  SELECT later.id FROM /*schema*/job later
  WHERE later.chain_id IN (SELECT value FROM json_each(:chain_ids)) AND later.chain_index > 0
)
RETURNING chain_id, id
