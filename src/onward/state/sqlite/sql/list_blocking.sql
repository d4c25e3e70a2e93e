-- The chains that jobs wait for and that have not ended, or those that have failed, in the order given at the start.
SELECT blocker.job_id, header.id
FROM json_each(:job_ids) AS asked
  CROSS JOIN /*schema*/blocker blocker ON blocker.job_id = asked.value
  CROSS JOIN /*schema*/job header ON header.id = blocker.blocked_by_chain_id
WHERE CASE WHEN :failed THEN header.chain_failed ELSE header.chain_ended_at IS NULL END
ORDER BY blocker.job_id, blocker.position
LIMIT :limit
