-- Lock the job a chain has come to. The function waits and looks again; its answer is newer than this statement's own
-- snapshot, so that the row is read by a second one.
SELECT /*schema*/lock_current(:chain_id::uuid)
