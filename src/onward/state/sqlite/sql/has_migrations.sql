-- Whether there are tables of ours at all.
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :table
