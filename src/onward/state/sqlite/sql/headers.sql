-- Which of these chains exist, whether each has ended, whether it failed.
SELECT id, chain_ended_at IS NOT NULL, chain_failed
FROM /*schema*/job WHERE id IN (SELECT value FROM json_each(:ids)) AND chain_index = 0
