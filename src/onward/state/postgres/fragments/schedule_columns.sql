schedule.name, schedule.type_name, schedule.definition, schedule.fingerprint, schedule.superseded, schedule.changed,
/*schema*/readable(schedule.next_at), /*schema*/readable(schedule.last_tick), schedule.last_chain_id, chain.id IS NOT NULL AND chain.chain_ended_at IS NULL,
schedule.skipped, /*schema*/readable(schedule.paused_at), schedule.error, /*schema*/readable(schedule.declared_at)
