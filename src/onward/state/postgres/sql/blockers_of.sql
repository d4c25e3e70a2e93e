-- What jobs wait, or waited, for, with the outputs of the chains that completed, in the order given at the start.
-- Two index look-ups instead of an OR, for which the planner would read the whole table.
SELECT blocker.job_id, header.id, header.type_name, job.status, job.type_name, job.payload_version, job.output::text
FROM /*schema*/blocker blocker
  JOIN /*schema*/job header ON header.id = blocker.blocked_by_chain_id
  JOIN /*schema*/job job ON job.id = coalesce(
    (SELECT latest.id FROM /*schema*/job latest
     WHERE latest.chain_id = header.id AND latest.chain_index > 0
     ORDER BY latest.chain_index DESC LIMIT 1),
    header.id)
WHERE blocker.job_id = ANY(:job_ids::uuid[])
ORDER BY blocker.job_id, blocker.position
