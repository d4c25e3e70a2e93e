"""The process that keeps a worker's leases. It imports the standard library, a lease keeper, its client, `table.py`."""
