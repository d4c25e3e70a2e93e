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

-- And who comes back has no place that he had before he was cancelled.
DROP FUNCTION IF EXISTS /*schema*/retry(uuid[], timestamptz);
DROP FUNCTION IF EXISTS /*schema*/not_retryable(uuid[], uuid[]);
DROP FUNCTION IF EXISTS /*schema*/lock_to_retry(uuid[], uuid[]);
DROP FUNCTION IF EXISTS /*schema*/failed_through(uuid[]);
DROP FUNCTION IF EXISTS /*schema*/lacks_blockers(/*schema*/job);
DROP FUNCTION IF EXISTS /*schema*/key_holder(uuid);

/*include functions/limiting*/

/*include functions/admitting*/

/*include functions/retrying*/
