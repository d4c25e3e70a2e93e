"""Queues in Redis: a few keys per queue, changed by Lua scripts that handle many jobs per call."""

from onward.queue.providers.redis.provider import Redis, RedisProvider

__all__ = ["Redis", "RedisProvider"]
