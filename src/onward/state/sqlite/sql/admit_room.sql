-- Of the keys given, and of those whose next slot has come, those with held jobs: the rule, and what has places already.
-- A key whose slot has come and that has no held jobs is told too: nothing wakes it then. A hand may have written anything
-- there: under a rule that is none nobody is let in, and keys are bytes, which may be no text.
SELECT CAST(asked.key AS BLOB), CASE WHEN rule.name IS NULL OR (/*include fragments/sound_rule*/) THEN rule.places ELSE 0 END,
  CASE WHEN /*include fragments/sound_rule*/ THEN rule.every END, CASE WHEN /*include fragments/sound_rule*/ THEN rule.burst ELSE 1 END,
  CASE WHEN typeof(paced.tat) = 'integer' THEN paced.tat END,
  (SELECT count(*) FROM /*schema*/job INDEXED BY /*schema*/job_admitted
   WHERE /*include fragments/placed_job*/ AND limit_key = asked.key)
    + (SELECT count(*) FROM /*schema*/limit_place place WHERE place.key = asked.key),
  (SELECT count(*) FROM /*schema*/job INDEXED BY /*schema*/job_admitted
   WHERE /*include fragments/placed_job*/ AND limit_key = asked.key AND status = 'pending')
    + (SELECT count(*) FROM /*schema*/limit_place place CROSS JOIN /*schema*/job waiting ON waiting.id = place.job_id
       WHERE place.key = asked.key AND waiting.status = 'pending')
FROM (
    SELECT value AS key FROM json_each(:keys)
    UNION
    SELECT key FROM /*schema*/limit_key WHERE wake_at <= :now
    UNION
    SELECT key FROM /*schema*/limit_key WHERE stale_at <= :now
    UNION
    SELECT key FROM /*schema*/limit_key WHERE wake_at > :now + /*include fragments/farthest_slot*/
  ) asked
  LEFT JOIN /*schema*/limit_rule rule ON rule.name = substr(asked.key, 1, instr(asked.key, '/') - 1)
  LEFT JOIN /*schema*/limit_key paced ON paced.key = asked.key
WHERE paced.wake_at IS NOT NULL OR paced.stale_at IS NOT NULL OR EXISTS (
  SELECT 1 FROM /*schema*/job INDEXED BY /*schema*/job_held WHERE /*include fragments/held_job*/ AND limit_key = asked.key)
