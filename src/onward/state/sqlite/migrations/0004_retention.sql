-- What lets one worker at a time prune what has ended, and remembers how far it came.

-- One row. A walk through the ids goes on where the last one stopped: what is kept is not read again with every batch.
CREATE TABLE /*schema*/retention (
  one        INTEGER PRIMARY KEY CHECK (one = 1),
  held_by    TEXT,
  held_until INTEGER NOT NULL,
  walks      TEXT NOT NULL
);
INSERT INTO /*schema*/retention (one, held_until, walks) VALUES (1, 0, '{}');
