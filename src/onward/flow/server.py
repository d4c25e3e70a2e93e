"""The Redis that holds a flow: a single server, or the node of a cluster that has the flow's slot."""

import asyncio
import hashlib
from contextlib import suppress
from functools import cache
from importlib.resources import files
from ssl import SSLCertVerificationError
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from onward.errors import ConfigurationError

Target = str | Redis | RedisCluster
_TRANSIENT = (
    *(ConnectionError, TimeoutError, OSError, ReadOnlyError, OutOfMemoryError),
    *(ClusterDownError, RedisClusterException, AskError, TryAgainError),
)
_FINAL = (AuthenticationError, AuthorizationError, SSLCertVerificationError)
"""To the client they are errors of a connection; but it does not get better by itself."""
_BUSY = "BUSY "
"""Somebody's script has run for seconds."""
_SLOT_MOVES = "access a non local key"
"""What a script is told that finds its slot on the move; see `common.lua`."""
_ANSWER = 5.0
"""Seconds that Redis has to answer, beyond those that a command may block."""
_OLDEST = (6, 2)


def is_transient(error: BaseException) -> bool:
    """Whether the same command may well succeed later: Redis is away, fails over, moves the slot, is busy or full."""
    if isinstance(error, _FINAL) or isinstance(error.__cause__, _FINAL):
        return False
    if isinstance(error, ResponseError) and (_SLOT_MOVES in str(error) or str(error).startswith(_BUSY)):
        return True
    return isinstance(error, _TRANSIENT)


class Server:
    """Runs commands and scripts over connections of its own; one command is tried once, whoever calls decides."""

    def __init__(self, target: Target, *, clustered: bool, name: str, key: str, blocks: float) -> None:
        """`key` is any key of the flow; `blocks` the seconds a command may block; `name` what CLIENT LIST shows."""
        self._own_cluster = RedisCluster.from_url(target) if clustered and isinstance(target, str) else None
        target = self._own_cluster or target
        self._target, self._name, self._key = target, name, key
        self._settings: dict[str, Any] = {
            "decode_responses": True,
            "client_name": name,
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": _ANSWER,
            "socket_timeout": blocks + _ANSWER,
            "socket_keepalive": True,
        }
        self._client: Any = None
        self._clients: dict[str, Any] = {}
        """By the node they lead to: a cluster's slot may move there and back."""
        self._connecting = asyncio.Lock()

    async def open(self) -> None:
        """Connect, and refuse a server that cannot hold a flow."""
        told = await self.execute("INFO")
        version = tuple(int(part) for part in str(told["redis_version"]).split(".")[:2])
        if version < _OLDEST:
            raise ConfigurationError(
                f"this Redis is version {told['redis_version']}; flows need BLMOVE, so 6.2 or newer"
            )
        if told.get("redis_mode") == "cluster" and not isinstance(self._target, RedisCluster):
            raise ConfigurationError(
                "this Redis is a node of a cluster: pass a RedisCluster, or the address with cluster=True"
            )

    async def close(self) -> None:
        self._client = None
        for client in self._clients.values():
            await client.aclose()
            await client.connection_pool.disconnect()
        self._clients.clear()
        if self._own_cluster is not None:
            await self._own_cluster.aclose()

    async def execute(self, *words: str | int | float) -> Any:
        """One command. A slot that has moved is followed, since the command was not run where it was."""
        for last in (False, True):
            client = self._client or await self._connect()
            try:
                return await client.execute_command(*words)
            except MovedError:
                self._forget(client)
                if last:
                    raise
            except (ConnectionError, ReadOnlyError, ClusterDownError):
                self._forget(client)
                raise
        raise AssertionError  # pragma: no cover - the loop returns or raises

    async def script(self, name: str, key: str, *arguments: str | int | float) -> Any:
        """A script by its digest; a server that does not know it, new or restarted, is handed its text."""
        text, digest = load(name)
        try:
            return await self.execute("EVALSHA", digest, 1, key, *arguments)
        except NoScriptError:
            return await self.execute("EVAL", text, 1, key, *arguments)

    async def unblock(self) -> None:
        """End the waits of our own connections as if their time was up: nothing that was moved is lost."""
        with suppress(Exception):  # without the right to it, waits end by themselves
            for client in await self.execute("CLIENT LIST"):
                if client.get("name") == self._name and "b" in client.get("flags", ""):
                    await self.execute("CLIENT UNBLOCK", client["id"], "TIMEOUT")

    def _forget(self, client: Any) -> None:
        """On a cluster, look for the slot again; the old connections are closed at the end."""
        if isinstance(self._target, RedisCluster) and self._client is client:
            self._client = None

    async def _connect(self) -> Any:
        async with self._connecting:
            if self._client is None:
                node = await self._find_node()
                if node not in self._clients:
                    self._clients[node] = Redis(connection_pool=self._pool())
                self._client = self._clients[node]
            return self._client

    async def _find_node(self) -> str:
        if not isinstance(self._target, RedisCluster):
            return ""
        # Through the cluster's own client, which follows what has moved: afterwards it knows the node.
        await self._target.execute_command("EXISTS", self._key)
        return str(self._node_of(self._target).name)

    def _node_of(self, cluster: RedisCluster) -> Any:
        return cluster.get_node_from_key(self._key)

    def _pool(self) -> ConnectionPool:
        target = self._target
        if isinstance(target, str):
            return ConnectionPool.from_url(target, **self._settings)
        lent: Any = self._node_of(target) if isinstance(target, RedisCluster) else target.connection_pool
        if isinstance(lent, SentinelConnectionPool):
            raise ConfigurationError("flows do not follow Sentinel: pass the address of the master")
        return ConnectionPool(lent.connection_class, **{**lent.connection_kwargs, **self._settings})


@cache
def load(name: str) -> tuple[str, str]:
    """A script with what all of them begin with, and its digest."""
    folder = files("onward.flow").joinpath("scripts")
    text = folder.joinpath("common.lua").read_text() + folder.joinpath(f"{name}.lua").read_text()
    return text, hashlib.sha1(text.encode()).hexdigest()
