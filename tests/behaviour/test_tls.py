"""TLS as the application asked for it, on every connection: a right, a wrong and an expired certificate."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import redis.asyncio
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

import certificates
import servers
from onward import Attempt, Onward, job
from onward.errors import ConfigurationError, OnwardError, QueueConfigurationError
from onward.notify.contract import Hint, HintKind, NotifyAdapter
from onward.notify.nats import NatsNotify
from onward.notify.postgres_connections import hint_connection_for
from onward.notify.redis import RedisNotify
from onward.queue import Queue, QueueWorker
from onward.queue.providers.bullmq import BullMQ
from onward.queue.providers.nats import Nats
from onward.queue.providers.redis import Redis
from onward.transport import Reach
from support import SOON

SECRET = "S3cr3tPW"
A_WHILE = 0.7
"""Seconds in which every connection of an app has been tried again."""


@job("nap")
async def nap(attempt: Attempt[int]) -> int:
    return attempt.input


@job("nap in a thread")
def nap_in_a_thread(attempt: Attempt[int]) -> int:
    return attempt.input


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with certificates.folder() as made:
        yield made


@pytest.fixture(scope="module")
def ours(folder: Path) -> certificates.Authority:
    return certificates.authority(folder)


@pytest.fixture(scope="module")
def shown(folder: Path, ours: certificates.Authority) -> dict[str, certificates.Certificate]:
    """What a server may show: what we trust, what somebody else has signed, what was good once."""
    return {
        "right": certificates.certificate(ours),
        "wrong": certificates.certificate(certificates.authority(folder / "others")),
        "expired": certificates.certificate(ours, expired=True),
    }


# -- Postgres, and a man in the middle


@dataclass
class Man:
    """In the middle: hands everything on, until he answers himself and asks for the password."""

    target: tuple[str, int]
    address: str = ""
    context: ssl.SSLContext | None = None
    answers: bool = False
    asked: int = 0
    stolen: list[bytes] = field(default_factory=list)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def appear(self, context: ssl.SSLContext | None) -> None:
        """The connections there are end; those that follow reach him, who speaks TLS with this, or none at all."""
        self.answers, self.context = True, context
        self._end()

    def leave(self) -> None:
        self.answers = False
        self._end()

    def _end(self) -> None:
        for writer in tuple(self._writers):
            _close(writer)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
            await (self._steal(reader, writer) if self.answers else self._hand_on(reader, writer))
        self._writers.discard(writer)
        _close(writer)

    async def _hand_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self.target)
        self._writers.add(back)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_pump(reader, back))
            tasks.create_task(_pump(there, writer))
        self._writers.discard(back)

    async def _steal(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        size, code = struct.unpack("!ii", await reader.readexactly(8))
        if code == 80877103:  # "do you speak TLS?"
            writer.write(b"S" if self.context else b"N")
            await writer.drain()
            if self.context:
                with _left_behind():
                    await writer.start_tls(self.context)
            size, code = struct.unpack("!ii", await reader.readexactly(8))
        await reader.readexactly(size - 8)
        writer.write(b"R" + struct.pack("!ii", 8, 3))  # the password, please, as it is
        await writer.drain()
        await reader.readexactly(1)
        size = struct.unpack("!i", await reader.readexactly(4))[0]
        self.stolen.append(await reader.readexactly(size - 4))


@contextmanager
def _left_behind() -> Iterator[None]:
    """Whoever hangs up in the middle of it leaves asyncio's streams without a transport, which they do not expect."""
    try:
        yield
    except AttributeError as error:
        raise ConnectionResetError from error


def _close(writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionResetError), _left_behind():
        writer.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()


@pytest.fixture(scope="module")
def postgres(shown: dict[str, certificates.Certificate]) -> Iterator[str]:
    with servers.private_postgres_with_tls(shown["right"].file, shown["right"].key) as server:
        yield server.dsn


@pytest.fixture
async def man(postgres: str) -> AsyncIterator[Man]:
    url = urlsplit(postgres)
    one = Man((url.hostname or "", url.port or 0))
    listening = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.address = f"postgres:{SECRET}@localhost:{listening.sockets[0].getsockname()[1]}/postgres"
    async with listening:
        yield one
        one.leave()


@dataclass(frozen=True)
class Way:
    """How an application says that it wants TLS."""

    name: str
    target: Callable[[str, certificates.Authority], Any]
    """(address, who is trusted) → what an app is made with, or who gives it."""
    has_sync: bool = False

    def __str__(self) -> str:
        return self.name


def verified(address: str, ours: certificates.Authority) -> str:
    return f"{address}?sslmode=verify-full&sslrootcert={ours.file}"


def engine_with_creator(address: str, ours: certificates.Authority) -> Any:
    async def create() -> Any:
        return await asyncpg.connect(f"postgresql://{address}", ssl=ours.context())

    return create_async_engine(f"postgresql+asyncpg://{address}", async_creator=create)


def engine_with_listener(address: str, ours: certificates.Authority) -> Any:
    engine = create_async_engine(f"postgresql+asyncpg://{address}")

    @event.listens_for(engine.sync_engine, "do_connect")
    def connecting(dialect: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> None:
        parameters["ssl"] = ours.context()

    return engine


WAYS = [
    Way("asyncpg", lambda address, ours: verified(f"postgresql+asyncpg://{address}", ours), has_sync=True),
    Way("psycopg", lambda address, ours: verified(f"postgresql+psycopg://{address}", ours), has_sync=True),
    Way("pool", lambda address, ours: asyncpg.create_pool(f"postgresql://{address}", ssl=ours.context(), min_size=1)),
    Way(
        "engine",
        lambda address, ours: create_async_engine(
            f"postgresql+asyncpg://{address}", connect_args={"ssl": ours.context()}
        ),
    ),
    Way(
        "engine-psycopg",
        lambda address, ours: create_async_engine(
            f"postgresql+psycopg://{address}",
            connect_args={"sslmode": "verify-full", "sslrootcert": str(ours.file)},
        ),
        has_sync=True,
    ),
    Way("engine-creator", engine_with_creator),
    Way("engine-listener", engine_with_listener),
]


@asynccontextmanager
async def made(way: Way, man: Man, ours: certificates.Authority) -> AsyncIterator[Any]:
    target = way.target(man.address, ours)
    if isinstance(target, asyncpg.Pool):
        async with target:
            yield target
    else:
        yield target
        if not isinstance(target, str):
            await target.dispose()


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_man_in_the_middle_is_told_nothing(
    man: Man, way: Way, ours: certificates.Authority, shown: dict[str, certificates.Certificate]
) -> None:
    jobs: list[Any] = [nap, nap_in_a_thread] if way.has_sync else [nap]
    async with made(way, man, ours) as target:
        app = Onward(target, jobs=jobs, migrate=True, schema="tls", observers=[])
        async with app, app.worker(grace=SOON):
            for each in jobs:
                assert await (await app.start(each, 1)).wait(timeout=SOON) == 1
            assert app._notify.crosses_processes
            assert app._notify.is_up

            for context in (None, in_the_name_of(shown["wrong"]), in_the_name_of(shown["expired"])):
                man.asked = 0
                man.appear(context)
                await asyncio.sleep(A_WHILE)
                async with asyncio.timeout(SOON.total_seconds()):
                    while not man.asked:
                        await asyncio.sleep(0.01)
            man.leave()

            async with asyncio.timeout(SOON.total_seconds()):
                while not app._notify.is_up:
                    await asyncio.sleep(0.01)
            assert await (await app.start(nap, 2)).wait(timeout=SOON) == 2
    assert man.stolen == []


def test_what_is_demanded_of_libpq_holds_for_hints_too(monkeypatch: pytest.MonkeyPatch) -> None:
    reach = Reach("psycopg", "postgresql://localhost/shop?sslmode=verify-full")
    assert hint_connection_for(reach).__qualname__.startswith("asyncpg_hints")
    for unknown_to_asyncpg in ("channel_binding=require", "hostaddr=127.0.0.1"):
        other = Reach("psycopg", f"postgresql://localhost/shop?{unknown_to_asyncpg}")
        assert hint_connection_for(other).__qualname__.startswith("psycopg_hints")

    monkeypatch.setenv("PGREQUIREAUTH", "scram-sha-256")

    assert hint_connection_for(reach).__qualname__.startswith("psycopg_hints")


def in_the_name_of(certificate: certificates.Certificate) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.file, certificate.key)
    return context


@pytest.mark.parametrize("way", [way for way in WAYS if not way.has_sync], ids=str)
async def test_what_a_sync_driver_cannot_be_told_is_refused(man: Man, way: Way, ours: certificates.Authority) -> None:
    async with made(way, man, ours) as target:
        app = Onward(target, jobs=[nap_in_a_thread], migrate=True, schema="tls")

        with pytest.raises(ConfigurationError, match="cannot be handed on"):
            _ = app.sync
        async with app:
            with pytest.raises(ConfigurationError, match="cannot be handed on"):
                app.worker()


# -- Redis and NATS


@asynccontextmanager
async def tls_redis(certificate: certificates.Certificate, ours: certificates.Authority) -> AsyncIterator[str]:
    port = str(servers._free_port())
    files = {"tls_cert_file": str(certificate.file), "tls_key_file": str(certificate.key)}
    with servers.private_redis(tls_port=port, tls_ca_cert_file=str(ours.file), tls_auth_clients="no", **files):
        yield f"rediss://127.0.0.1:{port}?ssl_ca_certs={ours.file}"


@asynccontextmanager
async def tls_nats(certificate: certificates.Certificate, ours: certificates.Authority) -> AsyncIterator[str]:
    files = ("--tlscert", str(certificate.file), "--tlskey", str(certificate.key))
    with servers.private_nats("--tls", *files, "--user", "ada", "--pass", SECRET) as server:
        yield server.dsn.replace("nats://", "tls://")


def redis_client(url: str, ours: certificates.Authority) -> NotifyAdapter:
    port = urlsplit(url).port
    return RedisNotify(redis.asyncio.Redis(port=port or 0, ssl=True, ssl_ca_certs=str(ours.file)), channel="tls")


BROKERS = [
    pytest.param(tls_redis, lambda url, ours: RedisNotify(url, channel="tls"), id="redis"),
    pytest.param(tls_redis, redis_client, id="redis-client"),
    pytest.param(
        tls_nats,
        lambda url, ours: NatsNotify(url, subject="tls", user="ada", password=SECRET, tls=ours.context()),
        id="nats",
    ),
]


@pytest.mark.parametrize("kind", ["right", "wrong", "expired"])
@pytest.mark.parametrize(("server", "make"), BROKERS)
async def test_hints_go_to_a_server_that_can_be_trusted_and_to_no_other(
    server: Any, make: Any, kind: str, ours: certificates.Authority, shown: dict[str, certificates.Certificate]
) -> None:
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(server(shown[kind], ours))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        notify: NotifyAdapter = make(url, ours)
        await notify.open(tasks)
        stack.push_async_callback(notify.close)
        async with notify.listen(lost=True) as listener:
            assert notify.is_up == (kind == "right")
            with suppress(OSError) if kind != "right" else nullcontext():
                await notify.announce([Hint(HintKind.LOST, "job")])
            if kind == "right":
                assert Hint(HintKind.LOST, "job") in await listener.wait(SOON.total_seconds())


@pytest.mark.parametrize("options", [{}, {"tls": ssl.create_default_context()}], ids=["address", "context"])
async def test_nats_without_tls_is_told_nothing_where_tls_was_asked_for(options: Any) -> None:
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.9","max_payload":1048576,"tls_required":false}\r\n')
        heard.append(await reader.readline())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening, asyncio.TaskGroup() as tasks:
        scheme, port = "nats" if options else "tls", listening.sockets[0].getsockname()[1]
        notify = NatsNotify(f"{scheme}://ada:{SECRET}@127.0.0.1:{port}", **options)
        errors: list[Exception | None] = []
        await notify.open(tasks, errors.append)
        async with notify.listen(lost=True), asyncio.timeout(SOON.total_seconds()):
            while len(heard) < 3:
                await asyncio.sleep(0.01)
            assert not notify.is_up
        await notify.close()

    assert set(heard) == {b""}
    assert "does not offer TLS" in str(errors[0])


def test_an_option_that_the_client_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cafile is not an option"):
        NatsNotify("tls://localhost", cafile="ca.pem")


@pytest.mark.parametrize("make", [NatsNotify, Nats])
def test_a_websocket_without_tls_is_not_told_to_use_it(make: Any) -> None:
    """It could not: nats-py would say the password in clear."""
    context = ssl.create_default_context()

    with pytest.raises((ConfigurationError, QueueConfigurationError), match="use wss://"):
        make(["wss://localhost", "ws://localhost"], tls=context)
    make(["wss://localhost"], tls=context)


@pytest.mark.parametrize("kind", ["right", "wrong", "expired"])
@pytest.mark.parametrize("provider", [Redis, BullMQ])
async def test_queues_go_to_a_redis_that_can_be_trusted_and_to_no_other(
    provider: Any, kind: str, ours: certificates.Authority, shown: dict[str, certificates.Certificate]
) -> None:
    done = asyncio.Event()

    async def handler(data: int, job: Any) -> None:
        done.set()

    async with tls_redis(shown[kind], ours) as url:
        if kind != "right":
            with pytest.raises(OnwardError, match="certificate"):
                async with Queue[int]("letters", provider=provider(url)) as queue:
                    await queue.add("letter", 1)
            return
        there = provider(url)
        async with Queue[int]("letters", provider=there) as queue, QueueWorker("letters", handler, provider=there):
            await queue.add("letter", 1)
            async with asyncio.timeout(SOON.total_seconds()):
                await done.wait()
