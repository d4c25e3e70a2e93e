-- The chains that jobs wait for and that have not ended, or those that have failed, in the order given at the start.
SELECT blocker.job_id, header.id
FROM /*schema*/blocker blocker
  JOIN /*schema*/job header ON header.id = blocker.blocked_by_chain_id
WHERE blocker.job_id = ANY(:job_ids::uuid[])
  AND CASE WHEN :failed::boolean THEN header.chain_failed ELSE header.chain_ended_at IS NULL END
ORDER BY blocker.job_id, blocker.position
LIMIT :limit
