"""How to reach Redis: from an address or a client, to a client of our own."""

import logging
from typing import Any

from onward.errors import QueueConfigurationError, QueueErrorCode

try:
    from redis.asyncio import ConnectionPool, Redis, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError as error:
    raise QueueConfigurationError(
        "redis is not installed: pip install 'onward[redis]'", code=QueueErrorCode.INVALID_OPTION
    ) from error

logger = logging.getLogger("onward.queue")
_ANSWER = 5.0
"""Seconds the server has to answer, where the user says nothing else. Longer than any call of ours blocks."""


def client_for(
    target: "str | Redis | RedisCluster", options: dict[str, Any], *, decode_responses: bool = False
) -> "Redis | RedisCluster":
    """A client on connections of its own; a cluster's client is used as it is."""
    if isinstance(target, RedisCluster):
        return target
    timeouts = {"socket_timeout": _ANSWER, "socket_connect_timeout": _ANSWER, "socket_keepalive": True}
    # A call that may have been carried out is not repeated behind our back: a second `add` would be a duplicate, and
    # whoever called knows best.
    ours = {"decode_responses": decode_responses, "retry": Retry(NoBackoff(), 0)}
    if isinstance(target, str):
        pool = ConnectionPool.from_url(target, **{**timeouts, **options, **ours})
    else:
        lent = target.connection_pool
        theirs = {name: value for name, value in lent.connection_kwargs.items() if value is not None}
        pool = ConnectionPool(lent.connection_class, **{**timeouts, **theirs, **options, **ours})
    return Redis.from_pool(pool)


async def warn_of_eviction(client: "Redis | RedisCluster") -> None:
    """Ask whether the server may throw jobs away; it must answer, whatever it answers."""
    if isinstance(client, RedisCluster):
        by_node = await client.info("memory", target_nodes=RedisCluster.PRIMARIES)
        nodes = list(by_node.values())
    else:
        nodes = [await client.info("memory")]
    for memory in nodes:
        policy = memory.get("maxmemory_policy", "")
        if memory.get("maxmemory") and policy.startswith("allkeys-"):
            logger.warning(
                "Redis may throw queued jobs away: its maxmemory-policy is %s. Set it to noeviction, so that a full "
                "server refuses new jobs instead.",
                policy,
            )
            return
