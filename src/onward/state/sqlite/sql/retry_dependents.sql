-- What failed because one of these chains did, each with its own chain.
SELECT DISTINCT header.id, header.type_name, header.deduplication_key, job.id, job.type_name, job.status, job.blockers,
  job.runs_anyway
FROM json_each(:chain_ids) asked
  CROSS JOIN /*schema*/blocker blocker ON blocker.blocked_by_chain_id = asked.value
  CROSS JOIN /*schema*/job job ON job.id = blocker.job_id
  CROSS JOIN /*schema*/job header ON header.id = job.chain_id
WHERE job.status = 'failed' AND job.failure_reason = 'blocker'
