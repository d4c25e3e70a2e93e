-- Who holds back vacuum, in this database: sessions with an old snapshot, prepared transactions, replication slots. Each
-- with what it is, what it is called, for how many seconds, for how many transactions, how many bytes of WAL it keeps.
(SELECT 'session', a.pid::text || coalesce(' (' || nullif(concat_ws(', ', a.usename, nullif(a.application_name, ''), a.state), '') || ')', ''),
   extract(epoch FROM clock_timestamp() - a.xact_start)::double precision,
   pg_catalog.age(a.backend_xmin), NULL::double precision
 FROM pg_catalog.pg_stat_activity a
 WHERE a.datname = current_database() AND a.pid <> pg_catalog.pg_backend_pid()
   AND (a.backend_xmin IS NOT NULL OR a.xact_start IS NOT NULL)
 ORDER BY 4 DESC NULLS LAST, 3 DESC NULLS LAST LIMIT 20)
UNION ALL
(SELECT 'prepared transaction', p.gid, extract(epoch FROM clock_timestamp() - p.prepared)::double precision,
   pg_catalog.age(p.transaction), NULL
 FROM pg_catalog.pg_prepared_xacts p WHERE p.database = current_database()
 ORDER BY p.prepared LIMIT 20)
UNION ALL
(SELECT CASE WHEN r.active THEN 'replication slot' ELSE 'unused replication slot' END, r.slot_name::text, NULL,
   pg_catalog.age(r.xmin),
   pg_catalog.pg_wal_lsn_diff(
     CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
       ELSE pg_catalog.pg_current_wal_lsn() END, r.restart_lsn)::double precision
 FROM pg_catalog.pg_replication_slots r
 ORDER BY 5 DESC NULLS LAST LIMIT 20)
