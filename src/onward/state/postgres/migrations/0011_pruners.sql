-- Apps that declare different types prune beside one another: each has a turn, and walks, of its own. Who is retried has
-- no place of a limit that he had before he was cancelled. And of what is unblocked before its time has come it is told.

-- Whose; workers that were started before go on with the row that has none.
ALTER TABLE /*schema*/retention DROP CONSTRAINT retention_pkey;
ALTER TABLE /*schema*/retention ALTER COLUMN one DROP NOT NULL, ALTER COLUMN one DROP DEFAULT,
  ADD COLUMN whose text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE /*schema*/retention ADD PRIMARY KEY (whose);

-- And whoever prunes no longer pays for the places that what has ended does not have.
DROP TRIGGER IF EXISTS job_held_new ON /*schema*/job;
DROP TRIGGER IF EXISTS job_held_again ON /*schema*/job;
DROP TRIGGER IF EXISTS job_place_gone ON /*schema*/job;
DROP FUNCTION IF EXISTS /*schema*/begin_limit();
DROP FUNCTION IF EXISTS /*schema*/wake_limit();
DROP FUNCTION IF EXISTS /*schema*/limit_lock();
DROP FUNCTION IF EXISTS /*schema*/held_keys(text, text, integer);
DROP FUNCTION IF EXISTS /*schema*/chains_ended(uuid[], timestamptz);
DROP FUNCTION IF EXISTS /*schema*/retry(uuid[], timestamptz);
DROP FUNCTION IF EXISTS /*schema*/not_retryable(uuid[], uuid[]);
DROP FUNCTION IF EXISTS /*schema*/lock_to_retry(uuid[], uuid[]);
DROP FUNCTION IF EXISTS /*schema*/failed_through(uuid[]);
DROP FUNCTION IF EXISTS /*schema*/lacks_blockers(/*schema*/job);
DROP FUNCTION IF EXISTS /*schema*/key_holder(uuid);

/*include functions/limiting*/

/*include functions/ending*/

/*include functions/retrying*/
