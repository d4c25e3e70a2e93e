-- new_job_columns of a `wanted` job.
wanted.id, wanted.chain_id, wanted.chain_index, wanted.type_name, wanted.payload_version, wanted.status, wanted.rank,
wanted.status = 'pending' AND wanted.scheduled_at > :now, wanted.limit_key, wanted.input, :now, wanted.scheduled_at,
wanted.origin_id, wanted.root_id, wanted.meta
