"""START and ask: calls of the application come in, rows and typed answers go out."""
