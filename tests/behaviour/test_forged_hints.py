"""Hints from strangers: another role on the database server, another client of the same Redis or NATS.

What they send costs a look now and then: never a job, nor much time.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import nats
import pytest
from redis.asyncio import Redis

import servers
from onward import Attempt, Onward, job
from onward.notify.contract import NotifyAdapter
from onward.notify.nats import NatsNotify
from onward.notify.postgres import PostgresNotify
from onward.notify.postgres_connections import Connect, asyncpg_hints, psycopg_hints
from onward.notify.redis import _MOST_CLAIMS, RedisNotify, _RedisHints
from onward.observe import events
from support import SOON, Recorder

NEVER = timedelta(hours=1)
WIRES = [asyncpg_hints, psycopg_hints]
Say = Callable[[Sequence[bytes]], Awaitable[None]]


@job("greet")
async def greet(attempt: Attempt[int]) -> int:
    return attempt.input


async def starts(app: Onward) -> float:
    """Seconds from a start to the output, the shortest of some: others may use the machine too."""
    took = []
    for n in range(5):
        began = time.monotonic()
        assert await (await app.start(greet, n)).wait(timeout=SOON) == n
        took.append(time.monotonic() - began)
    return min(took)


@asynccontextmanager
async def working(target: str, notify: NotifyAdapter | None = None, **options: Any) -> AsyncIterator[Onward]:
    app = Onward(target, jobs=[greet], migrate=True, schema="forged", notify=notify, **options)
    async with app, app.worker(concurrency=4, poll=NEVER):
        yield app


async def is_true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON.total_seconds()):
        while not condition():
            await asyncio.sleep(0.01)


# -- Postgres


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Of our own: a flood of notifications would be everybody's."""
    with servers.private_postgres() as instance:
        yield instance.dsn


@pytest.fixture
async def forger(server: str) -> AsyncIterator[Callable[[str], Awaitable[asyncpg.Connection]]]:
    """Sessions of a role that may connect, and nothing else; of one that may change jobs, too."""
    async with AsyncExitStack() as stack:
        ours = await asyncpg.connect(server)
        stack.push_async_callback(ours.close)
        if not await ours.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = 'forger'"):
            await ours.execute("CREATE ROLE forger LOGIN; CREATE ROLE colleague LOGIN")

        async def connect(role: str = "forger") -> asyncpg.Connection:
            if role == "colleague":
                await ours.execute("GRANT UPDATE ON forged.job TO colleague")
            one = await asyncpg.connect(server, user=role)
            stack.push_async_callback(one.close)
            return one

        yield connect


async def say(connection: asyncpg.Connection, *payloads: str) -> None:
    await connection.execute("SELECT pg_notify('onward_forged', p) FROM unnest($1::text[]) p", payloads)


def presence(app: Onward) -> dict[str, Any]:
    others: dict[str, Any] = app._notify._sharing._others  # type: ignore[attr-defined]
    return others


def over(wire: Callable[[str], Connect], server: str) -> NotifyAdapter:
    return PostgresNotify(wire(server), channel="onward_forged", table='"forged".job')


@pytest.mark.parametrize("wire", WIRES)
async def test_a_count_beyond_reason_does_not_keep_a_process_busy(
    server: str, forger: Any, wire: Callable[[str], Connect]
) -> None:
    async with working(server, over(wire, server)) as app:
        stranger = await forger("colleague")  # whose word counts
        await say(stranger, "@\na1000000000000000:greet", "@evil\na1000000000000000:greet")
        await is_true(lambda: len(presence(app)) == 1)
        await say(stranger, "#w\ns1000000000000000:greet", "#w\ns-99999999999999:greet", "-", "-evil")

        assert await starts(app) < 1


@pytest.mark.parametrize("wire", WIRES)
async def test_one_who_may_not_take_jobs_is_not_believed_to(
    server: str, forger: Any, wire: Callable[[str], Connect]
) -> None:
    async with working(server, over(wire, server)) as app:
        for number in range(3):
            stranger = await forger()
            await say(stranger, "@\na1000:greet", *(f"@{number}-{name}\na9:greet" for name in range(200)))
        await is_true(lambda: len(app._notify._refused) == 3)  # type: ignore[attr-defined]

        assert await starts(app) < 1
        assert presence(app) == {}


async def test_one_who_may_take_jobs_is_believed_and_nobody_can_say_farewell_for_another(
    server: str, forger: Any
) -> None:
    async with working(server) as app:
        colleague, stranger = await forger("colleague"), await forger()
        process = str(colleague.get_server_pid())
        await say(colleague, "@\na3:greet")
        await is_true(lambda: process in presence(app))

        await say(stranger, "-", f"-{process}", f"@{process}\na0:greet")
        await say(colleague, "@\na2:greet")
        await is_true(lambda: presence(app)[process].room == {"greet": 2})

        await say(colleague, "-")
        await is_true(lambda: not presence(app))


async def test_a_process_whose_session_is_gone_is_forgotten_when_another_comes(server: str, forger: Any) -> None:
    """As after a reconnection: nobody waits for the old session to be missed."""
    async with working(server) as app:
        colleague = await forger("colleague")
        await say(colleague, "@\na3:greet")
        await is_true(lambda: len(presence(app)) == 1)

        await colleague.close()
        again = await forger("colleague")
        await say(again, "@\na3:greet")

        await is_true(lambda: list(presence(app)) == [str(again.get_server_pid())])


# -- Redis and NATS


@asynccontextmanager
async def on_redis(seen: Recorder, target: str) -> AsyncIterator[tuple[Onward, Redis]]:
    with servers.private_redis() as server:
        async with Redis.from_url(server.dsn) as stranger:
            notify = RedisNotify(server.dsn, channel="forged")
            async with working(target, notify, observers=[seen]) as app:
                yield app, stranger


async def test_a_payload_names_no_key(recorder: Recorder) -> None:
    async with on_redis(recorder, "memory://") as (app, stranger):
        await stranger.hset("accounts", "greet", "100")
        for heading in (b"accounts", b"../accounts", b"forged:budget:accounts", b"\0accounts"):
            for _ in range(10):
                await stranger.publish("forged", heading + b"\ns4:greet")

        assert await starts(app) < 1
        assert await stranger.hgetall("accounts") == {b"greet": b"100"}


async def test_bytes_that_are_no_text_do_not_take_hints_down(recorder: Recorder) -> None:
    async with on_redis(recorder, "memory://") as (app, stranger):
        for _ in range(20):
            await stranger.publish("forged", b"\xff\xfe\n")

        assert await starts(app) < 1
    assert recorder.of(events.NotifyError) == []


async def test_questions_about_budgets_leave_connections_for_everything_else(recorder: Recorder) -> None:
    async with on_redis(recorder, "memory://") as (app, _):
        notify: Any = app._notify
        await is_true(lambda: notify.is_up)

        assert notify._connection._client.connection_pool.max_connections > _MOST_CLAIMS + 10


async def test_while_there_is_more_to_hear_others_have_their_turn() -> None:
    turns: list[int] = []

    class Subscription:
        heard = 0

        async def get_message(self, timeout: float) -> dict[str, Any]:
            self.heard += 1
            if self.heard == 3:
                raise ConnectionError("the end")
            asyncio.get_running_loop().call_soon(turns.append, self.heard)
            return {"type": "message", "data": b""}

    with pytest.raises(ConnectionError, match="the end"):
        await _RedisHints(None, Subscription(), "forged", lambda payload: None).hold()

    assert turns == [1, 2]


async def test_what_is_sent_to_the_followers_of_a_type_is_about_that_type() -> None:
    with servers.private_nats() as server:
        notify = NatsNotify(server.dsn, subject="forged")
        async with working("memory://", notify) as app:
            stranger, passed = await nats.connect(server.dsn), []

            async def hear(message: Any) -> None:
                passed.append(message.data)

            await stranger.subscribe("forged", cb=hear)
            await stranger.flush()
            for _ in range(10):
                await stranger.publish("forged.scheduled.greet", b"\ns999:another\ne1:chain\ns999999999999:greet")
            await stranger.flush()

            assert await starts(app) < 1
            await stranger.close()
    assert not any(b"another" in payload or b"chain" in payload for payload in passed)


# -- floods


def payloads(count: int, *, text: bool) -> Iterator[bytes]:
    """Anything, from noise to what is almost right."""
    chance = random.Random(14)
    heads = ["", "#", "@", "-", "#0f", "@p", "0123456789abcdef", "x" * 100, "é😀", "forged:budget:1", "\x7f\t"]
    counts = ["", "0", "1", "7", "-1", "+5", " 7", "1e9", "1_0", "٣", "999", "9" * 9, "9" * 18, "9" * 300]
    keys = ["greet", "", "greet:x", "x" * 300, "00000000-0000-0000-0000-000000000000", "é"]
    for _ in range(count):
        if not text and chance.random() < 0.2:
            yield chance.randbytes(chance.randrange(100))
            continue
        lines = [
            chance.choice("sdelxw?aqSé") + chance.choice(counts) + chance.choice((":", "", " :")) + chance.choice(keys)
            for _ in range(chance.randrange(8))
        ]
        yield "\n".join([chance.choice(heads), *lines]).encode()[:7_900]


async def flood(send: Say, count: int, *, text: bool = False) -> None:
    gathered: list[bytes] = []
    for payload in payloads(count, text=text):
        gathered.append(payload)
        if len(gathered) == 500:
            await send(gathered)
            gathered = []
    await send(gathered)


@pytest.mark.parametrize("wire", WIRES)
async def test_after_a_flood_of_notifications_jobs_start_at_once(
    server: str, forger: Any, scale: Any, recorder: Recorder, wire: Callable[[str], Connect]
) -> None:
    async with working(server, over(wire, server), observers=[recorder]) as app:
        strangers = [await forger("forger"), await forger("colleague")]

        async def send(batch: Sequence[bytes]) -> None:
            await say(strangers[0], *(one.decode(errors="ignore") for one in batch))
            strangers.reverse()

        await flood(send, scale(100_000), text=True)
        for stranger in strangers:
            await stranger.close()

        assert await starts(app) < 1
        assert app._notify.is_up
    assert recorder.of(events.NotifyError) == []


async def test_after_a_flood_on_redis_jobs_start_at_once(scale: Any, recorder: Recorder) -> None:
    async with on_redis(recorder, "memory://") as (app, stranger):

        async def send(batch: Sequence[bytes]) -> None:
            async with stranger.pipeline(transaction=False) as pipeline:
                for one in batch:
                    pipeline.publish("forged", one)
                await pipeline.execute()

        await flood(send, scale(100_000))

        assert await starts(app) < 1
    assert recorder.of(events.NotifyError) == []


async def test_after_a_flood_on_nats_jobs_start_at_once(scale: Any, recorder: Recorder) -> None:
    with servers.private_nats() as server:
        notify = NatsNotify(server.dsn, subject="forged")
        async with working("memory://", notify, observers=[recorder]) as app:
            stranger = await nats.connect(server.dsn)
            subjects = ["forged", "forged.scheduled.greet"]

            async def send(batch: Sequence[bytes]) -> None:
                for one in batch:
                    await stranger.publish(subjects[0], one)
                await stranger.flush()
                subjects.reverse()

            await flood(send, scale(100_000))

            assert await starts(app) < 1
            await stranger.close()
    assert recorder.of(events.NotifyError) == []
