limit_key IS NOT NULL AND (status = 'running' OR status = 'pending' AND NOT deferred AND admitted_after = attempt)
