job.id, job.chain_id, job.chain_index, job.type_name, job.payload_version, job.input::text, job.attempt, job.failures,
job.transients, job.crashes, job.rank, job.root_id, job.errors::text, job.blockers,
/*schema*/readable(job.scheduled_at), /*schema*/readable(job.created_at),
date_part('epoch', /*schema*/readable(job.leased_until) - /*schema*/readable(job.scheduled_at)), job.meta::text
