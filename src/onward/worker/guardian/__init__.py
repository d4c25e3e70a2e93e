"""Keeps the leases of running jobs: what a worker holds comes in, renewals and news of what was lost go out."""
