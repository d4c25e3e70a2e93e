-- Have the held jobs of keys looked at.
INSERT INTO /*schema*/limit_wake SELECT DISTINCT value FROM json_each(:keys) WHERE value NOT IN (SELECT key FROM /*schema*/limit_wake)
