"""Tests to run on adapters of your own: one conformance suite per contract. Needs pytest and pytest-asyncio."""
