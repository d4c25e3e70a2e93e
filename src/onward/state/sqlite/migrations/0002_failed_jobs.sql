-- Failed jobs by type, the last to fail at the end: counted and listed without reading what completed.
CREATE INDEX /*schema*/job_failed ON /*schema*/job (type_name, ended_at, id) WHERE status = 'failed';
