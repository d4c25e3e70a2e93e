-- The failed jobs of a type, the last to fail first.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job job
WHERE job.status = 'failed' AND job.type_name = :type_name
ORDER BY job.ended_at DESC, job.id DESC
LIMIT :limit
