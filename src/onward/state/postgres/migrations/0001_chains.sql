-- Jobs, what they wait for, and the functions that change several jobs at once.
--
-- A function is used where a change must see what other transactions have just committed: each statement inside a
-- volatile function has a fresh snapshot, the parts of one big statement share the one from its beginning.
--
-- Built-in functions and operators are named with their schema when this is loaded, and functions in PL/pgSQL get a
-- search_path of their own, unless they call nothing: state/statement.py says why.
--
-- One order of locks for everybody:
--   1. the advisory locks of deduplication keys, sorted: those of types before those of single keys;
--   2. a chain before the jobs that wait for it: who ends a chain locks what waits for it afterwards, and who wants both
--      (a start, a retry, a cancel or a deletion with the blockers) locks the blockers first;
--   3. of a chain, the job it has come to before its first job, the header;
--   4. several of a kind in the order of their ids.
-- Whether a job is blocked, and by how many chains, is only decided while the headers of all these chains are locked:
-- a chain that ends at this moment is waited for, and one that ends later finds the job. So no unblocking gets lost,
-- whatever starts, ends, fails, is cancelled, retried or deleted beside it. Where an order cannot be kept (a chain that
-- waits for another and for what that one waits for), one of two is undone by the server and tried again.

CREATE TABLE /*schema*/job (
  id                uuid PRIMARY KEY,
  chain_id          uuid NOT NULL,
  chain_index       integer NOT NULL,
  type_name         text NOT NULL,
  payload_version   integer NOT NULL,
  status            text NOT NULL CHECK (status IN ('blocked', 'pending', 'running', 'completed', 'failed')),
  -- -priority: an ascending index can be bounded from below, a mixed one cannot.
  rank              integer NOT NULL,
  -- Pending, but not yet due: kept out of the index that workers take from.
  deferred          boolean NOT NULL,
  limit_key         text,
  input             json NOT NULL,
  output            json,
  created_at        timestamptz NOT NULL,
  scheduled_at      timestamptz NOT NULL,
  origin_id         uuid,
  root_id           uuid NOT NULL,
  attempt           integer NOT NULL DEFAULT 0,
  failures          integer NOT NULL DEFAULT 0,
  -- Database errors and crashes in a row; an attempt that ends otherwise resets them.
  transients        integer NOT NULL DEFAULT 0,
  crashes           integer NOT NULL DEFAULT 0,
  leased_by         text,
  leased_until      timestamptz,
  cancel_requested_at timestamptz,
  -- Of the last attempts that failed, newest last.
  errors            json,
  progress          double precision,
  progress_note     text,
  failure_reason    text,
  ended_at          timestamptz,
  completed_by      text,
  blockers          integer NOT NULL DEFAULT 0,
  open_blockers     integer NOT NULL DEFAULT 0,
  runs_anyway       boolean NOT NULL DEFAULT false,
  deduplication_key text,
  -- The first job of a chain is its header: what others ask about a chain is one primary key look-up.
  chain_ended_at    timestamptz,
  chain_failed      boolean NOT NULL DEFAULT false,
  has_dependents    boolean NOT NULL DEFAULT false
) WITH (fillfactor = 85);

CREATE INDEX job_pending ON /*schema*/job (type_name, payload_version, rank, scheduled_at, id)
  WHERE status = 'pending' AND NOT deferred;
CREATE INDEX job_deferred ON /*schema*/job (type_name, scheduled_at) WHERE status = 'pending' AND deferred;
CREATE INDEX job_running ON /*schema*/job (type_name) WHERE status = 'running';
-- The last to fail at the end: counted and listed without reading what completed.
CREATE INDEX job_failed ON /*schema*/job (type_name, ended_at, id) WHERE status = 'failed';
CREATE UNIQUE INDEX job_chain ON /*schema*/job (chain_id, chain_index) WHERE chain_index > 0;
CREATE INDEX job_deduplication ON /*schema*/job (deduplication_key, type_name)
  WHERE deduplication_key IS NOT NULL AND chain_index = 0;

CREATE TABLE /*schema*/blocker (
  job_id              uuid NOT NULL,
  position            integer NOT NULL,
  blocked_by_chain_id uuid NOT NULL,
  PRIMARY KEY (job_id, position)
);
CREATE INDEX blocker_chain ON /*schema*/blocker (blocked_by_chain_id);

CREATE TABLE /*schema*/paused_type (
  type_name text PRIMARY KEY,
  paused_at timestamptz NOT NULL
);

-- A function is called up by the last migration that changed it, and by no other: a later one drops what there is of its
-- file and includes that, and the line here goes. So each is written once, and a new schema has none twice.
/*include functions/reading*/

/*include functions/keys*/

/*include functions/chains*/

/*include functions/settling*/

/*include functions/cancelling*/

/*include functions/triggering*/

/*include functions/deleting*/
