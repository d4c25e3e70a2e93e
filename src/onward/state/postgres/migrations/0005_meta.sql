-- What travels with a job beside its input: a small mapping, for traces and for the application.
ALTER TABLE /*schema*/job ADD COLUMN meta json;

DROP FUNCTION IF EXISTS /*schema*/start(json, timestamptz);
DROP FUNCTION IF EXISTS /*schema*/start_items(json);

/*include functions/starting*/
