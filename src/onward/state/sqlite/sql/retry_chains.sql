-- The chains that are to be retried, each with the job it has come to.
SELECT header.id, header.type_name, header.deduplication_key, job.id, job.type_name, job.status, job.blockers,
  job.runs_anyway
FROM /*schema*/job header
  /*include fragments/join_current_job*/
WHERE header.id IN (SELECT value FROM json_each(:chain_ids)) AND header.chain_index = 0
