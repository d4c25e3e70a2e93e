-- Admission for less: who gives a place, or takes a job, no longer pays for the triggers of those who give one up.
DROP TRIGGER IF EXISTS job_held_new ON /*schema*/job;
DROP TRIGGER IF EXISTS job_held_again ON /*schema*/job;
DROP TRIGGER IF EXISTS job_place_gone ON /*schema*/job;
DROP FUNCTION IF EXISTS /*schema*/begin_limit();
DROP FUNCTION IF EXISTS /*schema*/wake_limit();
DROP FUNCTION IF EXISTS /*schema*/limit_lock();
DROP FUNCTION IF EXISTS /*schema*/held_keys(text, text, integer);
DROP FUNCTION IF EXISTS /*schema*/woken_keys(integer, bigint, boolean, timestamptz);
DROP FUNCTION IF EXISTS /*schema*/admit(integer, bigint, boolean, timestamptz);
DROP FUNCTION IF EXISTS /*schema*/give_up_places(text[], text[]);
DROP FUNCTION IF EXISTS /*schema*/set_limits(text[], integer[], double precision[], integer[], text[], boolean, timestamptz);
DROP FUNCTION IF EXISTS /*schema*/pause_types(text[], timestamptz);
