"""Onward on a SQLite file: the domain SQL, and the standard library's driver in a thread per connection."""
