-- What jobs wait, or waited, for, with the outputs of the chains that completed, in the order given at the start.
SELECT blocker.job_id, header.id, header.type_name, job.status, job.type_name, job.output::text
FROM /*schema*/blocker blocker
  JOIN /*schema*/job header ON header.id = blocker.blocked_by_chain_id,
  LATERAL (
    SELECT latest.id FROM /*schema*/job latest
    WHERE latest.id = header.id OR (latest.chain_id = header.id AND latest.chain_index > 0)
    ORDER BY latest.chain_index DESC LIMIT 1
  ) current
  JOIN /*schema*/job job ON job.id = current.id
WHERE blocker.job_id = ANY(:job_ids::uuid[])
ORDER BY blocker.job_id, blocker.position
