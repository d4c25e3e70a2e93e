-- Places for less: keys that were woken are looked up one by one, and a take no longer calls what gives places up.
DROP TRIGGER IF EXISTS job_held_new ON /*schema*/job;
DROP TRIGGER IF EXISTS job_held_again ON /*schema*/job;
DROP TRIGGER IF EXISTS job_place_gone ON /*schema*/job;
DROP FUNCTION IF EXISTS /*schema*/begin_limit();
DROP FUNCTION IF EXISTS /*schema*/wake_limit();
DROP FUNCTION IF EXISTS /*schema*/limit_lock();
DROP FUNCTION IF EXISTS /*schema*/held_keys(text, text, integer);
DROP FUNCTION IF EXISTS /*schema*/look_after_unserved(timestamptz);
DROP FUNCTION IF EXISTS /*schema*/woken_keys(integer, bigint, boolean, timestamptz);
DROP FUNCTION IF EXISTS /*schema*/admit(integer, bigint, boolean, timestamptz);

/*include functions/admitting*/
