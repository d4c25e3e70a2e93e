-- Schedules: what the code declares, and how far they have come. A tick is claimed by moving next_at, in the transaction
-- that starts its chain: whoever finds another next_at than it has read comes too late.

CREATE TABLE /*schema*/schedule (
  name          text PRIMARY KEY,
  type_name     text NOT NULL,
  -- As declared, in JSON; its fingerprint, and a JSON array of those it has replaced, newest last.
  definition    text NOT NULL,
  fingerprint   text NOT NULL,
  superseded    text NOT NULL,
  -- What was changed at run time, in JSON.
  changed       text,
  -- The next tick; none when it is over.
  next_at       timestamptz,
  last_tick     timestamptz,
  last_chain_id uuid,
  -- Ticks that have started nothing.
  skipped       bigint NOT NULL DEFAULT 0,
  paused_at     timestamptz,
  -- Why the tick that is due could not be started.
  error         text,
  -- When live code last said so.
  declared_at   timestamptz NOT NULL
) WITH (fillfactor = 50);
