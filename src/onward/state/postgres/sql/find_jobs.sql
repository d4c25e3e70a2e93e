-- Jobs by id; those that do not exist are missing from the answer.
SELECT /*include fragments/job_columns*/ FROM /*schema*/job job WHERE job.id = ANY(:ids::uuid[])
