-- Those of jobs that run somebody wants cancelled.
SELECT id FROM /*schema*/job WHERE id IN (SELECT value FROM json_each(:ids)) AND cancel_requested_at IS NOT NULL
