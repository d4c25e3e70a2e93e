-- The chains that these chains wait, or waited, for.
SELECT DISTINCT blocker.blocked_by_chain_id
FROM /*schema*/job job JOIN /*schema*/blocker blocker ON blocker.job_id = job.id
WHERE job.id IN (
    /*include fragments/jobs_of*/
  )
