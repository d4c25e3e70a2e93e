-- Forget what these chains waited for, and who waited for them.
DELETE FROM /*schema*/blocker
WHERE blocked_by_chain_id IN (SELECT value FROM json_each(:chain_ids))
  OR job_id IN (
    SELECT value FROM json_each(:chain_ids)
    UNION ALL
    SELECT later.id FROM /*schema*/job later
    WHERE later.chain_id IN (SELECT value FROM json_each(:chain_ids)) AND later.chain_index > 0
  )
