-- A page of chains, newest first; the status is that of the job the chain has come to.
SELECT
  /*include fragments/chain_columns*/
FROM /*schema*/job header
  /*include fragments/join_current_job*/
WHERE header.chain_index = 0 AND
  /*include fragments/page_of_chains*/
ORDER BY header.id DESC
LIMIT :limit
