-- Delete whole chains.
DELETE FROM /*schema*/job
WHERE id IN (
  /*include fragments/jobs_of*/
)
RETURNING chain_id, id
