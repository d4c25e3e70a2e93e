-- What happened of late, minute by minute, and how long it took: a small table that rolls on.

-- What is blocked, by type: counted without reading what completed.
CREATE INDEX /*schema*/job_blocked ON /*schema*/job (type_name) WHERE status = 'blocked';

-- Each writer has rows of its own, and writes what they are to be, not what is to be added: to write the same twice is
-- harmless. What is minutes old is put together in one row, of the writer ''.
CREATE TABLE /*schema*/figure (
  -- Since 1970.
  minute    INTEGER NOT NULL,
  type_name TEXT NOT NULL,
  writer    TEXT NOT NULL,
  -- Jobs that were stored; only the writer '' counts them.
  started   INTEGER NOT NULL DEFAULT 0,
  completed INTEGER NOT NULL DEFAULT 0,
  failed    INTEGER NOT NULL DEFAULT 0,
  retried   INTEGER NOT NULL DEFAULT 0,
  -- How many took how long, as JSON: by the number of the bucket.
  waits     TEXT NOT NULL DEFAULT '{}',
  runs      TEXT NOT NULL DEFAULT '{}',
  PRIMARY KEY (minute, type_name, writer)
) WITHOUT ROWID;

-- One row: when to look again, and how far one came.
CREATE TABLE /*schema*/figure_turn (
  one        INTEGER PRIMARY KEY CHECK (one = 1),
  -- Microseconds since 1970.
  next_at    INTEGER NOT NULL,
  -- Starts are counted up to this id.
  counted_to TEXT NOT NULL,
  -- The first minute that is not put together yet.
  loose_from INTEGER NOT NULL
);
INSERT INTO /*schema*/figure_turn (one, next_at, counted_to, loose_from)
VALUES (1, 0, '00000000-0000-0000-0000-000000000000', 0);
