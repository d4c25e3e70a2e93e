status = 'pending' AND NOT deferred AND limit_key IS NOT NULL AND admitted_after IS DISTINCT FROM attempt
