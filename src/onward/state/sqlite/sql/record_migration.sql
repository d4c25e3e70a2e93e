-- A migration has been applied.
INSERT INTO /*schema*/migration (version, name) VALUES (:version, :name);
