-- A page of chains, newest first: as list_chains, but found in the indexes. A job that waits, runs or failed is the one its
-- chain has come to.
SELECT
  /*include fragments/chain_columns*/
FROM (
  /*include fragments/indexed_ids*/
) found, LATERAL (SELECT * FROM /*schema*/job same WHERE same.id = found.id OFFSET 0) job,
  LATERAL (SELECT * FROM /*schema*/job same WHERE same.id = job.chain_id OFFSET 0) header
WHERE header.chain_index = 0 AND
  /*include fragments/page_of_chains*/
ORDER BY header.id DESC
LIMIT :limit
