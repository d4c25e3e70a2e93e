"""OBSERVE: facts come in after their commit; logs, metrics and traces go out. An observer cannot fail the caller."""
