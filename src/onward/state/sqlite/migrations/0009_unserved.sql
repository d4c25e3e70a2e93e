-- Types that nobody serves give the places of limits up that others could have.

-- What had a place when somebody looked, and none of the workers that lived then took.
CREATE TABLE /*schema*/unserved_type (
  type_name       TEXT NOT NULL,
  payload_version INTEGER NOT NULL,
  PRIMARY KEY (type_name, payload_version)
) WITHOUT ROWID;
-- One row: when somebody looked.
CREATE TABLE /*schema*/limit_sweep (swept_at INTEGER NOT NULL);
INSERT INTO /*schema*/limit_sweep VALUES (0);
