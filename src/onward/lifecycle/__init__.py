"""Every change of a job's status, shared by client and worker: start, settle, and what happens after the commit."""
