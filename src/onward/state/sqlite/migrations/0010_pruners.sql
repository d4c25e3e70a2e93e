-- Apps that declare different types prune beside one another: each has a turn, and walks, of its own.

DROP TABLE /*schema*/retention;
CREATE TABLE /*schema*/retention (
  whose      TEXT NOT NULL PRIMARY KEY,
  held_by    TEXT,
  held_until INTEGER NOT NULL,
  walks      TEXT NOT NULL
);
-- Of workers that were started before.
INSERT INTO /*schema*/retention (whose, held_until, walks) VALUES ('', 0, '{}');
