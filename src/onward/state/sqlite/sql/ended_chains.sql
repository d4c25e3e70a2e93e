-- Which of these chains exist, and whether each has ended: what waiting asks again and again.
SELECT id, chain_ended_at IS NOT NULL FROM /*schema*/job
WHERE id IN (SELECT value FROM json_each(:ids)) AND chain_index = 0
