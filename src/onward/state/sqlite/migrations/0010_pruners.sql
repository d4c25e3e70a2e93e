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

-- And whoever prunes no longer pays for the places that what has ended does not have.
DROP TRIGGER IF EXISTS /*schema*/job_places_gone;
CREATE TRIGGER /*schema*/job_places_gone AFTER DELETE ON /*schema*/job
  WHEN OLD.limit_keys IS NOT NULL AND OLD.status IN ('pending', 'running')
BEGIN
  DELETE FROM /*schema*/limit_place WHERE job_id = OLD.id;
  INSERT INTO /*schema*/limit_wake
    SELECT CAST(value AS TEXT) FROM json_each(CASE WHEN json_valid(OLD.limit_keys) THEN OLD.limit_keys ELSE '[]' END)
    WHERE value IS NOT NULL AND CAST(value AS TEXT) NOT IN (SELECT key FROM /*schema*/limit_wake);
END;
