"""A queue's jobs as chains of one job: what is written, and how it is taken and settled."""
