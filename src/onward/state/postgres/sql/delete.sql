-- Delete whole chains, or say which unfinished jobs depend on them.
SELECT chain_id, job_id, change FROM /*schema*/delete_chains(:chain_ids::uuid[], :cascade::boolean)
