"""The process that keeps a worker's leases. It imports the standard library, a database client, and `table.py`."""
