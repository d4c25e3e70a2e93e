-- The server and this session, as far as they matter to jobs.
SELECT clock_timestamp(), current_setting('server_version_num')::int, pg_catalog.pg_is_in_recovery(),
  pg_catalog.pg_backend_pid(), current_user::text,
  pg_catalog.pg_has_role('pg_read_all_stats', 'MEMBER'),
  (SELECT coalesce(sum(numbackends), 0) FROM pg_catalog.pg_stat_database)::int,
  (SELECT nullif(r.rolconnlimit, -1) FROM pg_catalog.pg_roles r WHERE r.rolname = current_user),
  nullif(d.datconnlimit, -1), pg_catalog.age(d.datfrozenxid), pg_catalog.mxid_age(d.datminmxid)
FROM pg_catalog.pg_database d WHERE d.datname = current_database()
