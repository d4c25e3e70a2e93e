-- Something now waits for these chains: their end must look for it.
UPDATE /*schema*/job SET has_dependents = 1
WHERE id IN (SELECT value FROM json_each(:ids)) AND has_dependents = 0
