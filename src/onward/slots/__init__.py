"""The loop of every worker: fill the free slots, wait, drain."""
