-- A page of chains, newest first; the status is that of the job the chain has come to.
-- A blob sorts behind every text: the first page is a range like the others, found without reading what is above it.
SELECT
  /*include fragments/chain_columns*/
FROM /*schema*/job header
  /*include fragments/join_current_job*/
WHERE header.chain_index = 0 AND header.id < coalesce(:after, x'ffffffffffffffffffff')
  /*include fragments/filter_chains*/
ORDER BY header.id DESC
LIMIT :limit
