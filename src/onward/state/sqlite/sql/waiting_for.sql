-- Which chains have unfinished jobs that wait for these, as far as these have not ended.
SELECT header.id, job.chain_id
FROM json_each(:chain_ids) asked
  CROSS JOIN /*schema*/job header ON header.id = asked.value
  LEFT JOIN /*schema*/blocker blocker ON blocker.blocked_by_chain_id = header.id
  LEFT JOIN /*schema*/job job ON job.id = blocker.job_id AND job.status NOT IN ('completed', 'failed')
WHERE header.chain_index = 0 AND header.chain_ended_at IS NULL
