"""Onward on Postgres: the domain SQL once, and a thin driver for each client library."""
