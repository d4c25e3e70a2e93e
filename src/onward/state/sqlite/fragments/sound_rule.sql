typeof(rule.places) IN ('integer', 'null') AND typeof(rule.burst) = 'integer' AND rule.burst BETWEEN 1 AND 2147483647
AND (rule.every IS NULL
  OR typeof(rule.every) IN ('real', 'integer') AND rule.every BETWEEN 1e-6 AND 4e10 AND rule.every * rule.burst <= 4e10)
