"""`onward demo`: a small shop on a SQLite file; its workers are processes, and one of them is killed."""
