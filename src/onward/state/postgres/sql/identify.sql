-- Which database this is; the same for every replica of one server.
SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || current_database()::text
