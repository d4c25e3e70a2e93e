-- Chains by id.
SELECT
  /*include fragments/chain_columns*/
FROM /*schema*/job header
  /*include fragments/join_current_job*/
WHERE header.id IN (SELECT value FROM json_each(:ids)) AND header.chain_index = 0
