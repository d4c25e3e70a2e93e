schedule.name, schedule.type_name, schedule.definition, schedule.fingerprint, schedule.superseded, schedule.changed,
schedule.next_at, schedule.last_tick, schedule.last_chain_id, chain.id IS NOT NULL AND chain.chain_ended_at IS NULL,
schedule.skipped, schedule.paused_at, schedule.error, schedule.declared_at
