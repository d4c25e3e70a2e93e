-- Chains by id.
SELECT
  /*include fragments/chain_columns*/
FROM /*include fragments/chains*/
WHERE header.id = ANY(:ids::uuid[]) AND header.chain_index = 0
