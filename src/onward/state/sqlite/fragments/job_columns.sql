job.id, job.chain_id, job.chain_index, job.type_name, job.payload_version, job.status, job.rank, job.limit_key,
job.input, job.output, job.created_at, job.scheduled_at, job.origin_id, job.root_id, job.attempt, job.failures,
job.leased_by, job.leased_until, job.cancel_requested_at, job.errors, job.failure_reason, job.ended_at,
job.completed_by, job.open_blockers, job.deduplication_key, job.progress, job.progress_note, job.meta, NULL
