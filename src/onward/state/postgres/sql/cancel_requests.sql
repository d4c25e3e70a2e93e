-- Those of jobs that run somebody wants cancelled.
SELECT id FROM /*schema*/job WHERE id = ANY(:ids::uuid[]) AND cancel_requested_at IS NOT NULL
