id, chain_id, chain_index, type_name, payload_version, input, attempt, failures, transients, crashes, rank, root_id,
errors, blockers, scheduled_at, created_at, leased_until - scheduled_at, meta
