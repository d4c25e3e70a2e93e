"""Queues in this process: for tests, for programs that need no more, and to begin with."""

from onward.queue.providers.memory.provider import Memory, MemoryProvider

__all__ = ["Memory", "MemoryProvider"]
