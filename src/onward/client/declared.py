"""What leads to what among the declared types."""

from onward.define.registry import Registry


def continuations(registry: Registry) -> list[tuple[str, str]]:
    """Types, each with one that its chains may go on with."""
    return [(name, other) for name, kind in registry.items() for other in sorted(kind.continues_to)]


def waits(registry: Registry) -> list[tuple[str, str]]:
    """Types, each with one that its jobs may wait for."""
    return [(name, other) for name, kind in registry.items() for other in sorted(kind.blocked_by)]
