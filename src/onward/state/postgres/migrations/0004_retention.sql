-- What lets one worker at a time prune what has ended, and remembers how far it came.

-- One row. A walk through the ids goes on where the last one stopped: what is kept is not read again with every batch.
CREATE TABLE /*schema*/retention (
  one        boolean PRIMARY KEY DEFAULT true CHECK (one),
  held_by    text,
  held_until timestamptz,
  walks      text NOT NULL
);
INSERT INTO /*schema*/retention (walks) VALUES ('{}');
