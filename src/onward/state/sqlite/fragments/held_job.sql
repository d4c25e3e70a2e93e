status = 'pending' AND deferred = 0 AND limit_key IS NOT NULL AND admitted_after IS NOT attempt
