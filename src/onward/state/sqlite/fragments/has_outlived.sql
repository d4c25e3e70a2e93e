job.chain_index = 0 AND job.chain_ended_at <= :now - (
  SELECT CASE WHEN job.chain_failed THEN rule.failed ELSE rule.completed END
  FROM rule WHERE rule.type_name = job.type_name)
