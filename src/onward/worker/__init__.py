"""TAKE → RUN → SETTLE: pending jobs come in, committed outcomes go out."""
