id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, limit_key, input, created_at,
scheduled_at, origin_id, root_id, meta
