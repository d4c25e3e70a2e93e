-- Who works: a row per worker, kept alive by its guardian.
--
-- Only seen_at and what follows it change, and nothing of that is in an index: a sign of life touches no other page.
CREATE TABLE /*schema*/worker (
  -- What stands in leased_by.
  id             text PRIMARY KEY,
  host           text NOT NULL,
  pid            bigint NOT NULL,
  -- Of the application's code, if it was said.
  version        text,
  onward_version text NOT NULL,
  -- {"name": [versions of a payload that it can read]}
  types          json NOT NULL,
  concurrency    integer NOT NULL,
  started_at     timestamptz NOT NULL,
  seen_at        timestamptz NOT NULL,
  -- What it promised with that sign of life: whoever gives none until then is dead.
  alive_until    timestamptz NOT NULL,
  is_stopping    boolean NOT NULL,
  -- Since when its event loop had not turned, at that sign of life.
  blocked_since  timestamptz
) WITH (fillfactor = 50);
