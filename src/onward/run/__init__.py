"""RUN: a handler comes in, what became of it goes out, wherever it runs."""
