-- Schedules: what the code declares, and how far they have come. A tick is claimed by moving next_at, in the transaction
-- that starts its chain: whoever finds another next_at than it has read comes too late.

CREATE TABLE /*schema*/schedule (
  name          TEXT NOT NULL PRIMARY KEY,
  type_name     TEXT NOT NULL,
  -- As declared, in JSON; its fingerprint, and a JSON array of those it has replaced, newest last.
  definition    TEXT NOT NULL,
  fingerprint   TEXT NOT NULL,
  superseded    TEXT NOT NULL,
  -- What was changed at run time, in JSON.
  changed       TEXT,
  -- The next tick; none when it is over.
  next_at       INTEGER,
  last_tick     INTEGER,
  last_chain_id TEXT,
  -- Ticks that have started nothing.
  skipped       INTEGER NOT NULL DEFAULT 0,
  paused_at     INTEGER,
  -- Why the tick that is due could not be started.
  error         TEXT,
  -- When live code last said so.
  declared_at   INTEGER NOT NULL
);
