-- What these jobs wait for: whether each chain has ended, whether it failed.
SELECT blocker.job_id, header.id, header.chain_ended_at IS NOT NULL, header.chain_failed
FROM json_each(:ids) asked
  CROSS JOIN /*schema*/blocker blocker ON blocker.job_id = asked.value
  CROSS JOIN /*schema*/job header ON header.id = blocker.blocked_by_chain_id
