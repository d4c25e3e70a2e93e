-- A page of chains, newest first: as list_chains, but found in the indexes. A job that waits, runs or failed is the one its
-- chain has come to.
SELECT
  /*include fragments/chain_columns*/
FROM (
  /*include fragments/indexed_ids*/
) found CROSS JOIN /*schema*/job job ON job.id = found.id
  CROSS JOIN /*schema*/job header ON header.id = job.chain_id
WHERE header.chain_index = 0 AND
  /*include fragments/page_of_chains*/
ORDER BY header.id DESC
LIMIT :limit
