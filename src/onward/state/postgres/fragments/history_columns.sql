id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, limit_key, input, output, created_at,
scheduled_at, origin_id, root_id, attempt, failures, transients, crashes, leased_by, leased_until, cancel_requested_at,
errors, progress, progress_note, failure_reason, ended_at, completed_by, blockers, open_blockers, runs_anyway,
deduplication_key, chain_failed, has_dependents, admitted_after, limit_keys, meta
