"""How to reach Redis: from an address or a client, to a client of our own."""

import inspect
import logging
from typing import Any

from onward.addresses import shown, wrong_address
from onward.errors import QueueConfigurationError, QueueErrorCode
from onward.queue.checks import ProviderArguments

try:
    from redis.asyncio import ConnectionPool, Redis, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, ResponseError
except ImportError as error:
    raise QueueConfigurationError(
        "redis is not installed: pip install 'onward[redis]'", code=QueueErrorCode.INVALID_OPTION
    ) from error

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


def client_for(
    target: "str | Redis | RedisCluster", *, cluster: bool, options: dict[str, Any], decode_responses: bool = False
) -> "Redis | RedisCluster":
    """A client on connections of its own; a cluster's client that is given is used as it is."""
    if isinstance(target, RedisCluster):
        return target
    timeouts = {"socket_timeout": _ANSWER, "socket_connect_timeout": _ANSWER, "socket_keepalive": True}
    # Each queue that waits has a connection, and each outcome on its way: refusing one would fail a call, not save any.
    timeouts["max_connections"] = _ANY_NUMBER
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


def hopeless(error: BaseException) -> str | None:
    """What is wrong in words, when trying again cannot help."""
    if isinstance(error, NoPermissionError):
        return f"this user may not do that: {error}"
    if isinstance(error, AuthenticationError | AuthorizationError) or "AUTH" in str(error)[:40]:
        return f"the user name or the password is wrong, or one is missing: {error}"
    return None


async def warn_of_eviction(client: "Redis | RedisCluster") -> None:
    """Ask whether the server may throw jobs away; it must answer, whatever it answers."""
    try:
        if isinstance(client, RedisCluster):
            answer = await client.info("memory", target_nodes=RedisCluster.PRIMARIES)
            # Of one node it is what that node says, of several it is by their names.
            nodes = [answer] if "maxmemory_policy" in answer else list(answer.values())
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


async def opened(
    target: "str | Redis | RedisCluster",
    *,
    options: dict[str, Any],
    cluster: bool = False,
    decode_responses: bool = False,
) -> Any:
    """A client whose server has answered, and was looked at."""
    client = client_for(target, cluster=cluster, options=options, decode_responses=decode_responses)
    try:
        await warn_of_eviction(client)
    except BaseException:
        await left(client, target)
        raise
    return client


async def left(client: Any, target: object) -> None:
    """Close it, unless it was given."""
    if client is not target:
        await client.aclose()
