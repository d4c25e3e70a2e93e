"""In: what there is to see of a database and of those who work on it. Out: what is wrong, and what to do about it."""
