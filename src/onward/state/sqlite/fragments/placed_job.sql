limit_key IS NOT NULL AND (status = 'running' OR status = 'pending' AND deferred = 0 AND admitted_after = attempt)
