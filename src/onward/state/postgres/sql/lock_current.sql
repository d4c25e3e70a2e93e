-- Lock the job a chain has come to. A function, because its answer must be newer than this statement's own snapshot.
SELECT /*include fragments/job_columns*/ FROM /*schema*/locked_job(:chain_id::uuid) AS job
