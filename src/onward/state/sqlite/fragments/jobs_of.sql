-- Every job of chains that exist: the first has the chain's id.
SELECT value FROM json_each(:chain_ids)
UNION ALL
SELECT later.id FROM /*schema*/job later
WHERE later.chain_id IN (SELECT value FROM json_each(:chain_ids)) AND later.chain_index > 0
