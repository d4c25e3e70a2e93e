-- What travels with a job beside its input: a small mapping, for traces and for the application.
ALTER TABLE /*schema*/job ADD COLUMN meta TEXT;
