(SELECT 1000000 + 1000000 * coalesce(max(every), 0) FROM /*schema*/limit_rule)
