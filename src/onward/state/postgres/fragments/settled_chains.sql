-- After `settled`, the jobs, and whether their chains end with them: the headers of chains that ended at a later job, what
-- waited for chains, and the answer.
header AS (
  UPDATE /*schema*/job job SET
    chain_ended_at = coalesce(:now::timestamptz, statement_timestamp()), chain_failed = s.status = 'failed'
  FROM settled s
  WHERE s.chain_index > 0 AND job.id = s.chain_id AND s.ends
  RETURNING job.id, job.has_dependents
), ended AS (
  SELECT array_agg(e.id ORDER BY e.id) AS ids FROM (
    SELECT id FROM settled WHERE has_dependents AND chain_index = 0 AND ends
    UNION ALL
    SELECT id FROM header WHERE has_dependents
  ) e
)
SELECT id, chain_id, type_name, status, 'settled' AS change, failure_reason AS reason FROM settled
UNION ALL
SELECT c.job_id, c.chain_id, c.type_name, NULL, c.change, c.reason
FROM ended, /*schema*/chains_ended(ended.ids, coalesce(:now::timestamptz, statement_timestamp())) c
WHERE ended.ids IS NOT NULL
