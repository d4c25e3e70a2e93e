"""`onward bench`: the address of a database comes in, what Onward does per second there goes out."""
