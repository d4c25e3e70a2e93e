-- The job a chain has come to.
SELECT /*include fragments/job_columns*/
FROM /*schema*/job header
  /*include fragments/join_current_job*/
WHERE header.id = :chain_id AND header.chain_index = 0
