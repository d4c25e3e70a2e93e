-- What happened of late, minute by minute, and how long it took: a small table that rolls on.

-- What is blocked, by type: counted without reading what completed. It costs those who start such a job, and nobody else.
CREATE INDEX job_blocked ON /*schema*/job (type_name) WHERE status = 'blocked';

-- Each writer has rows of its own, and writes what they are to be, not what is to be added: so nobody waits for anybody, and
-- to write the same twice is harmless. What is minutes old is put together in one row, of the writer ''.
CREATE TABLE /*schema*/figure (
  -- Since 1970.
  minute    integer NOT NULL,
  type_name text COLLATE "C" NOT NULL,
  writer    text COLLATE "C" NOT NULL,
  -- Jobs that were stored; only the writer '' counts them.
  started   integer NOT NULL DEFAULT 0,
  completed integer NOT NULL DEFAULT 0,
  failed    integer NOT NULL DEFAULT 0,
  retried   integer NOT NULL DEFAULT 0,
  -- How many took how long, as JSON: by the number of the bucket.
  waits     text NOT NULL DEFAULT '{}',
  runs      text NOT NULL DEFAULT '{}',
  PRIMARY KEY (minute, type_name, writer)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- One row: when to look again, and how far one came.
CREATE TABLE /*schema*/figure_turn (
  one        boolean PRIMARY KEY DEFAULT true CHECK (one),
  -- Microseconds since 1970.
  next_at    bigint NOT NULL,
  -- Starts are counted up to this id.
  counted_to text NOT NULL,
  -- The first minute that is not put together yet.
  loose_from integer NOT NULL
);
INSERT INTO /*schema*/figure_turn (next_at, counted_to, loose_from) VALUES (0, '00000000-0000-0000-0000-000000000000', 0);
