-- Run scheduled jobs now; one that is due keeps its place in line.
UPDATE /*schema*/job SET scheduled_at = min(scheduled_at, :now), deferred = 0
WHERE id IN (
    SELECT header.id FROM /*schema*/job header
    WHERE header.id IN (SELECT value FROM json_each(:chain_ids)) AND header.chain_index = 0
    UNION ALL
    SELECT later.id FROM /*schema*/job later
    WHERE later.chain_id IN (SELECT value FROM json_each(:chain_ids)) AND later.chain_index > 0
  )
  AND status = 'pending'
RETURNING id, chain_id, type_name, 'triggered'
