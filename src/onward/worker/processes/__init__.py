"""Runs handlers in processes of their own: input as JSON text comes in, an outcome as JSON text goes out."""
