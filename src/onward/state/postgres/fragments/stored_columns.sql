job.id, job.chain_id, job.chain_index, job.type_name, job.payload_version, job.status, job.rank, job.limit_key,
job.input::text, job.output::text, /*schema*/readable(job.created_at), /*schema*/readable(job.scheduled_at),
job.origin_id, job.root_id, job.attempt, job.failures, job.leased_by, /*schema*/readable(job.leased_until),
/*schema*/readable(job.cancel_requested_at), job.errors::text, job.failure_reason, /*schema*/readable(job.ended_at),
job.completed_by, job.open_blockers, job.deduplication_key, job.progress, job.progress_note, job.meta::text
