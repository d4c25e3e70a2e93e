"""How to reach Redis: from an address, or a client that lends its settings, to connections of our own.

A command is tried once: one that may have been carried out is not repeated behind our back, whoever sent it knows best.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from onward.errors import ConfigurationError

try:
    from redis import exceptions
    from redis.asyncio import ConnectionPool, Redis, RedisCluster
    from redis.asyncio.cluster import ClusterNode
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import SentinelConnectionPool
    from redis.backoff import NoBackoff
except ImportError as error:
    raise ConfigurationError("redis is not installed: pip install 'onward[redis]'") from error

__all__ = [
    "ClusterNode",
    "ConnectionPool",
    "Redis",
    "RedisCluster",
    "SentinelConnectionPool",
    "Target",
    "exceptions",
    "own_client",
    "own_cluster",
    "timeouts",
]

Target: TypeAlias = str | Redis | RedisCluster
"""What users give."""
_NOTHING: Mapping[str, Any] = {}


def timeouts(answer: float, *, blocks: float = 0.0) -> dict[str, Any]:
    """Settings: seconds that the server has to answer, beyond those that a command may block there."""
    return {"socket_connect_timeout": answer, "socket_timeout": blocks + answer, "socket_keepalive": True}


def own_client(
    target: str | Redis | ClusterNode, settings: Mapping[str, Any], *, unless_said: Mapping[str, Any] = _NOTHING
) -> Redis:
    """A client of one server, whose connections close with it. `unless_said` is for what `target` does not say."""
    settings = _complete(settings)
    if isinstance(target, str):
        return Redis.from_pool(ConnectionPool.from_url(target, **{**unless_said, **settings}))
    lent: Any = target.connection_pool if isinstance(target, Redis) else target
    said = {
        name: value for name, value in lent.connection_kwargs.items() if value is not None or name not in unless_said
    }
    return Redis.from_pool(ConnectionPool(lent.connection_class, **{**unless_said, **said, **settings}))


def own_cluster(address: str, settings: Mapping[str, Any]) -> RedisCluster:
    """A client of the cluster that one of its nodes tells of."""
    return RedisCluster.from_url(address, **_complete(settings))


def _complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"decode_responses": False, **settings, "retry": Retry(NoBackoff(), 0)}
