-- What has been applied to this file. PRAGMA user_version is the application's, not ours.
CREATE TABLE IF NOT EXISTS /*schema*/migration (
  version    INTEGER NOT NULL PRIMARY KEY,
  name       TEXT NOT NULL,
  applied_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER))
);
