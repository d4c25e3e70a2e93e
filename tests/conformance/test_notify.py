"""The notify conformance suite over every adapter, and what only one of them does."""

import asyncio
import os
import secrets
import signal
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

import servers
from onward.conformance.notify.budgets import *  # noqa: F403
from onward.conformance.notify.hearing import LONG, Connect
from onward.conformance.notify.suite import *  # noqa: F403
from onward.notify.changes import ChangeNotify
from onward.notify.contract import Changed, Hint, HintKind, NotifyAdapter, ignore
from onward.notify.memory import MemoryNotify
from onward.notify.nats import NatsNotify
from onward.notify.postgres import PostgresNotify
from onward.notify.postgres_connections import asyncpg_hints, psycopg_hints
from onward.notify.redis import RedisNotify
from onward.state.sqlite.file import SqliteFile


@dataclass(frozen=True)
class Adapter:
    name: str
    place: str
    """The fixture that knows the address."""
    make: Callable[[Any, str], NotifyAdapter]
    """(address, a name of the test's own) → an adapter."""


def changes(path: Path, _: str) -> NotifyAdapter:
    return ChangeNotify(SqliteFile(path).commits)


def as_cluster(*urls: str) -> str:
    """The address of a cluster by some of its nodes."""
    return "redis+cluster://" + ",".join(url.removeprefix("redis://") for url in urls)


ADAPTERS = [
    Adapter("memory", "nowhere", lambda _address, _name: MemoryNotify()),
    Adapter("changes", "sqlite_file", changes),
    Adapter("asyncpg", "postgres_dsn", lambda dsn, name: PostgresNotify(asyncpg_hints(dsn), channel=name)),
    Adapter("psycopg", "postgres_dsn", lambda dsn, name: PostgresNotify(psycopg_hints(dsn), channel=name)),
    Adapter("redis", "redis_url", lambda url, name: RedisNotify(url, channel=name)),
    Adapter(
        "redis-client", "redis_url", lambda url, name: RedisNotify(redis.asyncio.Redis.from_url(url), channel=name)
    ),
    Adapter("redis-cluster", "redis_cluster_url", lambda url, name: RedisNotify(as_cluster(url), channel=name)),
    Adapter("nats", "nats_url", lambda url, name: NatsNotify(url, subject=name)),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "adapter" in metafunc.fixturenames:
        metafunc.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)


@pytest.fixture
def nowhere() -> None:
    return None


@pytest.fixture
def sqlite_file(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        raw.execute("CREATE TABLE t (x)")
    return tmp_path / "jobs.db"


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def open_one(notify: NotifyAdapter, changed: Changed = ignore) -> NotifyAdapter:
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            await notify.open(tasks, changed)
            stack.push_async_callback(notify.close)
            return notify

        yield open_one


@pytest.fixture
def connect(request: pytest.FixtureRequest, adapter: Adapter, opened: Any) -> Connect:
    address = request.getfixturevalue(adapter.place)
    name = f"test_{secrets.token_hex(6)}"

    async def open_one() -> NotifyAdapter:
        one: NotifyAdapter = await opened(adapter.make(address, name))
        return one

    return open_one


# -- only some


async def test_the_change_counter_tells_of_commits_of_others(sqlite_file: Path, opened: Any) -> None:
    notify = await opened(changes(sqlite_file, ""))

    async with notify.listen(types=["mail"]) as listener:
        await listener.wait(0.1)
        with closing(sqlite3.connect(sqlite_file)) as other, other:
            other.execute("INSERT INTO t VALUES (1)")

        assert [hint.kind for hint in await listener.wait(LONG)][:1] == [HintKind.UNKNOWN]


async def test_what_cannot_be_read_is_ignored(redis_url: str, opened: Any) -> None:
    name = f"test_{secrets.token_hex(6)}"
    notify = await opened(RedisNotify(redis_url, channel=name))

    async with notify.listen(lost=True) as listener, redis.asyncio.Redis.from_url(redis_url) as client:
        for payload in ("", "\n", "budget\n%1:newer\nl1:job", "budget\n\xff", "budget\ns-:mail"):
            await client.publish(name, payload)

        assert await listener.wait(LONG) == [Hint(HintKind.LOST, "job")]


BROKERS = [
    pytest.param(servers.private_redis, RedisNotify, id="redis"),
    pytest.param(servers.private_nats, NatsNotify, id="nats"),
]


@pytest.mark.parametrize(("private", "make"), BROKERS)
async def test_hints_come_back_with_the_broker(private: Any, make: Any, opened: Any) -> None:
    changes: list[Exception | None] = []
    with private() as broker:
        here = await opened(make(broker.dsn), changes.append)
        there = await opened(make(broker.dsn))
        async with here.listen(lost=True) as listener, there.listen(lost=True) as other:
            assert here.is_up
            await asyncio.to_thread(broker.stop)
            for one in (listener, other):
                assert [hint.kind for hint in await one.wait(LONG)] == [HintKind.UNKNOWN]
            assert (here.is_up, [type(error) for error in changes].count(type(None)), len(changes)) == (False, 0, 1)
            began = time.monotonic()
            with pytest.raises((OSError, TimeoutError)):
                await there.announce([Hint(HintKind.LOST, "meanwhile")])
            assert time.monotonic() - began < 2.5

            await asyncio.to_thread(broker.start)

            for one in (listener, other):
                async with asyncio.timeout(LONG):
                    while not any(hint.kind is HintKind.UNKNOWN for hint in await one.wait(LONG)):
                        pass
            await there.announce([Hint(HintKind.LOST, "later")])
            async with asyncio.timeout(LONG):
                while Hint(HintKind.LOST, "later") not in await listener.wait(LONG):
                    pass
            assert here.is_up
            assert changes[1:] == [None]


@pytest.mark.parametrize(("private", "make"), BROKERS)
async def test_a_broker_that_falls_silent_is_noticed(private: Any, make: Any, opened: Any) -> None:
    with private() as broker:
        notify = await opened(make(broker.dsn))
        async with notify.listen(lost=True) as listener:
            os.kill(broker.pid, signal.SIGSTOP)
            assert [hint.kind for hint in await listener.wait(LONG)] == [HintKind.UNKNOWN]
            assert not notify.is_up

            os.kill(broker.pid, signal.SIGCONT)

            assert [hint.kind for hint in await listener.wait(LONG)] == [HintKind.UNKNOWN]
            assert notify.is_up


@pytest.mark.chaos
@pytest.mark.parametrize("fault", ["freeze", "kill"])
async def test_a_cluster_without_one_of_its_nodes_is_down_until_it_is_whole(fault: str, opened: Any) -> None:
    with servers.private_redis_cluster() as nodes:
        address = as_cluster(*(node.dsn for node in nodes))
        here, there = await opened(RedisNotify(address)), await opened(RedisNotify(address))
        async with here.listen(lost=True) as listener:
            await there.announce([Hint(HintKind.LOST, "before")])
            assert await listener.wait(LONG) == [Hint(HintKind.LOST, "before")]

            node = nodes[0]
            if fault == "kill":
                await asyncio.to_thread(node.stop, "kill")
            else:
                os.kill(node.pid, signal.SIGSTOP)
            async with asyncio.timeout(2 * LONG):
                while here.is_up:
                    await asyncio.sleep(0.05)
            if fault == "kill":
                await asyncio.to_thread(node.start)
            else:
                os.kill(node.pid, signal.SIGCONT)

            async with asyncio.timeout(2 * LONG):
                while not (here.is_up and there.is_up):
                    await asyncio.sleep(0.05)
            with suppress(Exception):  # down for a moment more, and not yet noticed there: it leaves when that is over
                await there.announce([Hint(HintKind.LOST, "after")])
            async with asyncio.timeout(LONG):
                while Hint(HintKind.LOST, "after") not in await listener.wait(LONG):
                    pass


@pytest.mark.parametrize(("scheme", "make"), [("redis", RedisNotify), ("nats", NatsNotify)])
async def test_where_no_broker_is_announcing_fails_soon(scheme: str, make: Any, opened: Any) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        notify = await opened(make(f"{scheme}://127.0.0.1:{closed.getsockname()[1]}"))

        async with notify.listen(lost=True) as listener:
            began = time.monotonic()
            with pytest.raises((OSError, TimeoutError)):
                await notify.announce([Hint(HintKind.LOST, "job")])

            assert time.monotonic() - began < 2.5
            assert Hint(HintKind.LOST, "job") in await listener.wait(LONG)  # in this process it needs no broker
            assert not notify.is_up
