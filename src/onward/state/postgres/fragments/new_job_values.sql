-- new_job_columns of a `wanted` job, which waits for nothing.
wanted.id, wanted.chain_id, wanted.chain_index, wanted.type_name, wanted.payload_version, 'pending', wanted.rank,
coalesce(wanted.scheduled_at, wanted.at + make_interval(secs => wanted.delay)) > wanted.at, wanted.limit_key,
wanted.input::json, wanted.at, coalesce(wanted.scheduled_at, wanted.at + make_interval(secs => wanted.delay)),
wanted.origin_id, wanted.root_id, wanted.meta::json
