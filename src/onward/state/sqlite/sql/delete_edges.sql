-- Forget what these chains waited for, and who waited for them.
DELETE FROM /*schema*/blocker
WHERE blocked_by_chain_id IN (SELECT value FROM json_each(:chain_ids))
  OR job_id IN (
    /*include fragments/jobs_of*/
  )
