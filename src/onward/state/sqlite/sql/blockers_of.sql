-- What jobs wait, or waited, for, with the outputs of the chains that completed, in the order given at the start.
SELECT blocker.job_id, header.id, header.type_name, job.status, job.type_name, job.payload_version, job.output
FROM /*schema*/blocker blocker
  CROSS JOIN /*schema*/job header ON header.id = blocker.blocked_by_chain_id
  /*include fragments/join_current_job*/
WHERE blocker.job_id IN (SELECT value FROM json_each(:job_ids))
ORDER BY blocker.job_id, blocker.position
