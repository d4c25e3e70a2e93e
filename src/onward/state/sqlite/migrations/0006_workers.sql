-- Who works: a row per worker, kept alive by its guardian.
CREATE TABLE /*schema*/worker (
  -- What stands in leased_by.
  id             TEXT NOT NULL PRIMARY KEY,
  host           TEXT NOT NULL,
  pid            INTEGER NOT NULL,
  -- Of the application's code, if it was said.
  version        TEXT,
  onward_version TEXT NOT NULL,
  -- {"name": [versions of a payload that it can read]}
  types          TEXT NOT NULL,
  concurrency    INTEGER NOT NULL,
  started_at     INTEGER NOT NULL,
  seen_at        INTEGER NOT NULL,
  -- What it promised with that sign of life: whoever gives none until then is dead. 0: its guardian saw it die.
  alive_until    INTEGER NOT NULL,
  is_stopping    INTEGER NOT NULL,
  -- Since when its event loop had not turned, at that sign of life.
  blocked_since  INTEGER
);
