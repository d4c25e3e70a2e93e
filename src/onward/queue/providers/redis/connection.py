"""How to reach Redis: from an address or a client, to a client of our own."""

import logging
from typing import Any

from onward.errors import QueueConfigurationError, QueueErrorCode

try:
    from redis.asyncio import ConnectionPool, Redis, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import ResponseError
except ImportError as error:
    raise QueueConfigurationError(
        "redis is not installed: pip install 'onward[redis]'", code=QueueErrorCode.INVALID_OPTION
    ) from error

logger = logging.getLogger("onward.queue")
_ANSWER = 5.0
"""Seconds the server has to answer, where the user says nothing else."""
_LONGEST_BLOCK = 2.0


def client_for(
    target: "str | Redis | RedisCluster", *, cluster: bool, options: dict[str, Any], decode_responses: bool = False
) -> "Redis | RedisCluster":
    """A client on connections of its own; a cluster's client that is given is used as it is."""
    if isinstance(target, RedisCluster):
        return target
    timeouts = {"socket_timeout": _ANSWER, "socket_connect_timeout": _ANSWER, "socket_keepalive": True}
    # A call that may have been carried out is not repeated behind our back: a second `add` would be a duplicate, and
    # whoever called knows best.
    ours = {"decode_responses": decode_responses, "retry": Retry(NoBackoff(), 0)}
    if not isinstance(target, str):
        lent = target.connection_pool
        theirs = {name: value for name, value in lent.connection_kwargs.items() if value is not None}
        return Redis.from_pool(ConnectionPool(lent.connection_class, **{**timeouts, **theirs, **options, **ours}))
    if cluster:
        return RedisCluster.from_url(target, **{**timeouts, **options, **ours})
    return Redis.from_pool(ConnectionPool.from_url(target, **{**timeouts, **options, **ours}))


def longest_block(client: "Redis | RedisCluster") -> float:
    """Seconds that a call may block at the server, well before the client would give up on it."""
    lends = client if isinstance(client, RedisCluster) else client.connection_pool
    return min(_LONGEST_BLOCK, (lends.connection_kwargs.get("socket_timeout") or _ANSWER) / 2)


async def warn_of_eviction(client: "Redis | RedisCluster") -> None:
    """Ask whether the server may throw jobs away; it must answer, whatever it answers."""
    try:
        if isinstance(client, RedisCluster):
            nodes = list((await client.info("memory", target_nodes=RedisCluster.PRIMARIES)).values())
        else:
            nodes = [await client.info("memory")]
    except ResponseError as error:
        logger.debug("Redis does not tell whether it may throw jobs away: %s", error)
        return
    policies = {node["maxmemory_policy"] for node in nodes if node.get("maxmemory")}
    # Only these touch keys that do not expire, such as ours.
    careless = sorted(policy for policy in policies if policy.startswith("allkeys-"))
    if careless:
        logger.warning(
            "Redis may throw queued jobs away: its maxmemory-policy is %s. Set it to noeviction, so that a full server "
            "refuses new jobs instead.",
            ", ".join(careless),
        )
