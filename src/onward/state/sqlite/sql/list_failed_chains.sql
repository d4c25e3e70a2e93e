-- A page of failed chains, newest first, by why and when they failed: as list_chains, but found in the index of what
-- failed. A job that failed is the one its chain has come to.
SELECT
  /*include fragments/chain_columns*/
FROM /*schema*/job job INDEXED BY /*schema*/job_failed CROSS JOIN /*schema*/job header ON header.id = job.chain_id
WHERE job.status = 'failed' AND header.chain_index = 0 AND header.id < coalesce(:after, x'ffffffffffffffffffff')
  /*include fragments/filter_chains*/
  /*include fragments/filter_failed*/
ORDER BY header.id DESC
LIMIT :limit
