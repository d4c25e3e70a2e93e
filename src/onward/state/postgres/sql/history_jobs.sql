-- The jobs of a chain in the history, in their order; where its id was used again, those of the one that ended last.
SELECT
  /*include fragments/history_job_columns*/
FROM /*schema*/history job
WHERE job.chain_id = :chain_id::uuid AND job.chain_ended_at = (
  SELECT max(latest.chain_ended_at) FROM /*schema*/history latest WHERE latest.chain_id = :chain_id::uuid)
ORDER BY job.chain_index
