"""How to reach Redis: from an address or a client, to a client of our own."""

import inspect
import logging
from typing import Any

from onward.addresses import shown, wrong_address
from onward.queue.checks import ProviderArguments
from onward.redis.connection import (
    ConnectionPool,
    Redis,
    RedisCluster,
    Target,
    exceptions,
    own_client,
    own_cluster,
    timeouts,
)

logger = logging.getLogger("onward.queue")
_ANSWER = 5.0
"""Seconds the server has to answer, where the user says nothing else."""
_LONGEST_BLOCK = 2.0
_ADDRESSES = ("redis://", "rediss://", "unix://")
_ANY_NUMBER = 1 << 20
_CLUSTER_OPTIONS = inspect.signature(RedisCluster.__init__).parameters


def check_target(arguments: ProviderArguments, target: object, options: dict[str, Any]) -> None:
    """Refuse what cannot be a server, and options that its client does not have."""
    if isinstance(target, RedisCluster):
        if target.connection_kwargs.get("decode_responses"):
            arguments.refuse_because("target must be a client with decode_responses=False: what comes back is bytes")
        if options:
            arguments.refuse_because(f"{', '.join(options)}: left out beside a client, which has its own options")
    elif isinstance(target, Redis):
        _check_options(arguments, ConnectionPool(target.connection_pool.connection_class, **options))
    elif not isinstance(target, str) or not target.startswith(_ADDRESSES):
        expected = "an address (redis://…, rediss://…, unix://…) or a client of redis.asyncio"
        arguments.refuse_because(f"target must be {expected}, got: {shown(target)}")
    else:
        if problem := wrong_address("target", target, [target.partition("://")[0]]):
            arguments.refuse_because(problem)
        try:
            pool = ConnectionPool.from_url(target, **options)
        except ValueError as error:
            arguments.refuse_because(f"target: {error}")
        _check_options(arguments, pool)


def _check_options(arguments: ProviderArguments, pool: "ConnectionPool") -> None:
    known: set[str] = set(_CLUSTER_OPTIONS)
    for kind in pool.connection_class.__mro__:
        known.update(inspect.signature(kind).parameters)
    for name in pool.connection_kwargs:
        if name not in known:
            arguments.refuse_because(f"the redis package has no option {name!r}")


async def open_client(
    target: Target, *, cluster: bool = False, options: dict[str, Any], decode_responses: bool = False
) -> "Redis | RedisCluster":
    """A client on connections of its own, of a server that answers."""
    client = _client_for(target, cluster, {**options, "decode_responses": decode_responses})
    try:
        await _warn_of_eviction(client)
    except BaseException:
        await left(client, target)
        raise
    return client


def _client_for(target: Target, cluster: bool, settings: dict[str, Any]) -> "Redis | RedisCluster":
    """A cluster's client that is given is used as it is."""
    if isinstance(target, RedisCluster):
        return target
    # Each queue that waits has a connection, and each outcome on its way: refusing one would fail a call, not save any.
    unless_said = {**timeouts(_ANSWER), "max_connections": _ANY_NUMBER}
    if cluster and isinstance(target, str):
        return own_cluster(target, {**unless_said, **settings})
    return own_client(target, settings, unless_said=unless_said)


def longest_block(client: "Redis | RedisCluster") -> float:
    """Seconds that a call may block at the server, well before the client would give up on it."""
    lends = client if isinstance(client, RedisCluster) else client.connection_pool
    return min(_LONGEST_BLOCK, (lends.connection_kwargs.get("socket_timeout") or _ANSWER) / 2)


def hopeless(error: BaseException) -> str | None:
    """What is wrong in words, when trying again cannot help."""
    if isinstance(error, exceptions.NoPermissionError):
        return f"this user may not do that: {error}"
    if isinstance(error, exceptions.AuthenticationError | exceptions.AuthorizationError) or "AUTH" in str(error)[:40]:
        return f"the user name or the password is wrong, or one is missing: {error}"
    return None


async def _warn_of_eviction(client: "Redis | RedisCluster") -> None:
    """Ask whether the server may throw jobs away; it must answer, whatever it answers."""
    try:
        if isinstance(client, RedisCluster):
            answer = await client.info("memory", target_nodes=RedisCluster.PRIMARIES)
            # Of one node it is what that node says, of several it is by their names.
            nodes = [answer] if "maxmemory_policy" in answer else list(answer.values())
        else:
            nodes = [await client.info("memory")]
    except exceptions.ResponseError as error:
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


async def left(client: Any, target: object) -> None:
    """Close it, unless it was given."""
    if client is not target:
        await client.aclose()
