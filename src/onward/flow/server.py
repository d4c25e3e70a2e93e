"""The Redis that holds a flow: a single server, or the node of a cluster that has the flow's slot."""

import asyncio
from contextlib import suppress
from ssl import SSLCertVerificationError
from typing import Any

from onward.errors import ConfigurationError
from onward.redis.connection import (
    ClusterNode,
    Redis,
    RedisCluster,
    SentinelConnectionPool,
    Target,
    exceptions,
    own_client,
    timeouts,
)
from onward.redis.scripts import load, run

_TRANSIENT = (
    *(exceptions.ConnectionError, exceptions.TimeoutError, OSError),
    *(exceptions.ReadOnlyError, exceptions.OutOfMemoryError),
    *(exceptions.ClusterDownError, exceptions.RedisClusterException, exceptions.AskError, exceptions.TryAgainError),
)
_FINAL = (exceptions.AuthenticationError, exceptions.AuthorizationError, SSLCertVerificationError)
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
    if isinstance(error, exceptions.ResponseError) and (_SLOT_MOVES in str(error) or str(error).startswith(_BUSY)):
        return True
    return isinstance(error, _TRANSIENT)


class Server:
    """Runs commands and scripts over connections of its own; one command is tried once, whoever calls decides."""

    def __init__(self, target: Target, *, clustered: bool, name: str, key: str, blocks: float) -> None:
        """`key` is any key of the flow; `blocks` the seconds a command may block; `name` what CLIENT LIST shows."""
        self._own_cluster = RedisCluster.from_url(target) if clustered and isinstance(target, str) else None
        target = self._own_cluster or target
        self._target, self._name, self._key = target, name, key
        self._settings = {**timeouts(_ANSWER, blocks=blocks), "decode_responses": True, "client_name": name}
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
        self._clients.clear()
        if self._own_cluster is not None:
            await self._own_cluster.aclose()

    async def execute(self, *words: str | int | float) -> Any:
        """One command. A slot that has moved is followed, since the command was not run where it was."""
        for last in (False, True):
            client = self._client or await self._connect()
            try:
                return await client.execute_command(*words)
            except exceptions.MovedError:
                self._forget(client)
                if last:
                    raise
            except (exceptions.ConnectionError, exceptions.ReadOnlyError, exceptions.ClusterDownError):
                self._forget(client)
                raise
        raise AssertionError  # pragma: no cover - the loop returns or raises

    async def script(self, name: str, key: str, *arguments: str | int | float) -> Any:
        return await run(self.execute, load("onward.flow", "common", name), 1, key, *arguments)

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
                name, lends = await self._find_node()
                if name not in self._clients:
                    self._clients[name] = own_client(lends, self._settings)
                self._client = self._clients[name]
            return self._client

    async def _find_node(self) -> tuple[str, str | Redis | ClusterNode]:
        """Its name, if it is one of several, and how to reach it."""
        target = self._target
        if isinstance(target, RedisCluster):
            # Through the cluster's own client, which follows what has moved: afterwards it knows the node.
            await target.execute_command("EXISTS", self._key)
            node: Any = target.get_node_from_key(self._key)
            return node.name, node
        if isinstance(target, Redis) and isinstance(target.connection_pool, SentinelConnectionPool):
            raise ConfigurationError("flows do not follow Sentinel: pass the address of the master")
        return "", target
