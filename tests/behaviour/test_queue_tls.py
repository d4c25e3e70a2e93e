"""Queues over TLS, with a certificate that is right, a stranger's, and one that is too old: never in plain text."""

import asyncio
import secrets
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiobotocore.session import get_session

import certificates
import servers
from onward.errors import QueueConfigurationError, QueueErrorCode, QueueRuntimeError
from onward.queue import ProviderFactory, Queue, QueueWorker
from onward.queue.providers.nats import Nats
from onward.queue.providers.rabbitmq import RabbitMQ
from onward.queue.providers.sqs import SQS, NewQueue
from servers import SQS_CLIENT

SECOND = timedelta(seconds=1)
AWS = get_session()


@dataclass(frozen=True)
class Papers:
    ours: certificates.Authority
    strangers: certificates.Authority
    right: certificates.Certificate
    expired: certificates.Certificate
    elsewhere: certificates.Certificate


@pytest.fixture(scope="module")
def papers() -> Iterator[Papers]:
    with certificates.folder() as folder:
        ours = certificates.authority(folder / "ours")
        yield Papers(
            ours=ours,
            strangers=certificates.authority(folder / "strangers", "strangers"),
            right=certificates.certificate(ours),
            expired=certificates.certificate(ours, expired=True),
            elsewhere=certificates.certificate(ours, ["elsewhere.example.org"]),
        )


async def works(factory: ProviderFactory[Any]) -> None:
    """A job is added, run and gone."""
    done: asyncio.Queue[int] = asyncio.Queue()

    async def handler(data: int, job: object) -> None:
        done.put_nowait(data)

    async with Queue[int](f"tls-{secrets.token_hex(6)}", provider=factory) as queue:
        await queue.add("one", 7)
        async with QueueWorker(queue.name, handler, provider=factory):
            assert await asyncio.wait_for(done.get(), 30) == 7
        await queue.delete()


async def is_refused(factory: ProviderFactory[Any], words: str) -> None:
    """Told in words, not to be tried again, and without the password."""
    queue: Queue[Any] = Queue("tls", provider=factory)

    with pytest.raises(QueueRuntimeError, match=words) as caught:
        await queue.add("one", 7)

    assert (caught.value.code, caught.value.retryable) == (QueueErrorCode.CONNECTION, False)
    assert "s3cret" not in str(caught.value)


class TestNats:
    @pytest.fixture
    def server(self, papers: Papers) -> Iterator[Callable[[certificates.Certificate], str]]:
        """Starts one that insists on TLS; its address."""
        with ExitStack() as stack:

            def start(paper: certificates.Certificate) -> str:
                options = ["--tls", "--tlscert", str(paper.file), "--tlskey", str(paper.key)]
                return stack.enter_context(servers.private_nats(*options)).dsn

            yield start

    @pytest.mark.parametrize("scheme", ["tls", "nats"])
    async def test_the_right_certificate(self, server: Any, papers: Papers, scheme: str) -> None:
        address = server(papers.right).replace("nats:", f"{scheme}:")

        await works(Nats(address, tls=papers.ours.context(), wait=SECOND))

    @pytest.mark.parametrize(
        ("paper", "words"),
        [("expired", "certificate has expired"), ("elsewhere", "not valid for '127.0.0.1'")],
    )
    async def test_a_certificate_that_is_too_old_or_for_another_host(
        self, server: Any, papers: Papers, paper: str, words: str
    ) -> None:
        address = server(getattr(papers, paper)).replace("nats:", "tls:")

        await is_refused(Nats(address, tls=papers.ours.context()), f"certificate of NATS is not trusted: .*{words}")

    async def test_a_strangers_certificate(self, server: Any, papers: Papers) -> None:
        address = server(papers.right).replace("nats:", "tls:")

        for options in ({"tls": papers.strangers.context()}, {}):
            await is_refused(Nats(address, **options), "certificate of NATS is not trusted: unable to get local issuer")

    @pytest.mark.parametrize("how", ["tls://", "nats:// with tls="])
    async def test_a_server_without_tls_hears_nothing(self, papers: Papers, how: str) -> None:
        async with listener(b'INFO {"server_id":"x","version":"2.9.10","max_payload":1048576}\r\n') as (port, heard):
            address = f"{how.partition(':')[0]}://ada:s3cret@127.0.0.1:{port}"
            options = {"tls": papers.ours.context()} if "with" in how else {}

            await is_refused(Nats(address, **options), "does not speak TLS, which was asked for")

        assert heard == []

    async def test_a_server_with_tls_for_those_who_want_it(self, papers: Papers, tmp_path: Path) -> None:
        with certificates.folder() as folder:
            paper = papers.right
            settings = f'tls {{ cert_file: "{paper.file}", key_file: "{paper.key}" }}\nallow_non_tls: true\n'
            (folder / "nats.conf").write_text(settings)
            (folder / "nats.conf").chmod(0o644)
            with servers.private_nats("--config", str(folder / "nats.conf")) as server:
                address = server.dsn.replace("nats:", "tls:")

                await works(Nats(address, tls=papers.ours.context(), wait=SECOND))
                await is_refused(Nats(address, tls=papers.strangers.context()), "certificate of NATS is not trusted")
                await works(Nats(server.dsn, wait=SECOND))

    @pytest.mark.parametrize("bad", ["ca.pem", True, {}])
    def test_tls_is_a_context(self, bad: object) -> None:
        with pytest.raises(QueueConfigurationError, match=r"tls must be an ssl\.SSLContext"):
            Nats("tls://localhost", tls=bad)


class TestSqs:
    @pytest.fixture
    def server(self, papers: Papers) -> Iterator[Callable[[certificates.Certificate], str]]:
        with ExitStack() as stack:

            def start(paper: certificates.Certificate) -> str:
                return stack.enter_context(servers.private_sqs(certificate=(paper.file, paper.key))).dsn

            yield start

    def factory(self, address: str, authority: certificates.Authority | None) -> SQS:
        trust = {} if authority is None else {"verify": str(authority.file)}
        return SQS(address, create=NewQueue(), wait=SECOND, session=AWS, **SQS_CLIENT, **trust)

    async def test_the_right_certificate_and_a_strangers(self, server: Any, papers: Papers) -> None:
        address = server(papers.right)

        await works(self.factory(address, papers.ours))
        for trusted in (papers.strangers, None):
            await is_refused(self.factory(address, trusted), "its certificate is not trusted.*local issuer")

    async def test_a_certificate_that_is_too_old(self, server: Any, papers: Papers) -> None:
        await is_refused(self.factory(server(papers.expired), papers.ours), "is not trusted.*certificate has expired")

    async def test_a_server_without_tls_hears_nothing_but_a_greeting(self, papers: Papers) -> None:
        async with listener(b"") as (port, heard):
            await is_refused(self.factory(f"https://127.0.0.1:{port}", papers.ours), "no TLS with SQS")

        assert {said[:3] for said in heard} <= {b"\x16\x03\x01"}


@pytest.fixture(scope="module")
def rabbitmq_server(papers: Papers) -> Iterator[tuple[str, str]]:
    """One server, whose certificate is right as 127.0.0.1 and too old as localhost; both addresses."""
    port = servers._free_port()
    configuration = f"listeners.ssl.default = 127.0.0.1:{port}"
    right, old = (
        f'{{certfile, "{paper.file}"}}, {{keyfile, "{paper.key}"}}' for paper in (papers.right, papers.expired)
    )
    advanced = f'[{{rabbit, [{{ssl_options, [{right}, {{sni_hosts, [{{"localhost", [{old}]}}]}}]}}]}}].'
    with servers.private_rabbitmq(configuration, advanced):
        yield f"amqps://guest:guest@127.0.0.1:{port}/", f"amqps://guest:guest@localhost:{port}/"


@pytest.mark.slow
@pytest.mark.timeout(300)
class TestRabbitMQ:
    async def test_the_right_certificate(self, rabbitmq_server: tuple[str, str], papers: Papers) -> None:
        await works(RabbitMQ(rabbitmq_server[0], ssl_context=papers.ours.context()))
        await works(RabbitMQ(rabbitmq_server[0], cafile=str(papers.ours.file)))
        await works(RabbitMQ(f"{rabbitmq_server[0]}?cafile={papers.ours.file}"))

    async def test_a_strangers_certificate(self, rabbitmq_server: tuple[str, str], papers: Papers) -> None:
        words = "certificate of RabbitMQ is not trusted: unable to get local issuer"
        for options in ({"ssl_context": papers.strangers.context()}, {"cafile": str(papers.strangers.file)}, {}):
            await is_refused(RabbitMQ(rabbitmq_server[0], **options), words)

    async def test_a_certificate_that_is_too_old(self, rabbitmq_server: tuple[str, str], papers: Papers) -> None:
        words = "certificate of RabbitMQ is not trusted: certificate has expired"
        await is_refused(RabbitMQ(rabbitmq_server[1], ssl_context=papers.ours.context()), words)

    async def test_a_port_without_tls(self, rabbitmq_url: str) -> None:
        place = urlsplit(rabbitmq_url).netloc
        await is_refused(RabbitMQ(f"amqps://{place}/"), "RabbitMQ does not speak TLS as we do at this address")


async def test_rabbitmq_without_tls_hears_nothing_but_a_greeting() -> None:
    async with listener(b"") as (port, heard):
        await is_refused(RabbitMQ(f"amqps://ada:s3cret@127.0.0.1:{port}/"), "does not speak TLS as we do")

    assert {said[:3] for said in heard} <= {b"\x16\x03\x01"}


@pytest.mark.parametrize("how", ["option", "context", "address"])
def test_rabbitmq_is_not_told_of_certificates_for_plain_text(how: str) -> None:
    options: dict[str, Any] = {"option": {"cafile": "ca.pem"}, "context": {"ssl_context": ssl.create_default_context()}}
    address = "amqp://localhost/?cafile=ca.pem" if how == "address" else "amqp://localhost/"

    with pytest.raises(QueueConfigurationError, match=r"is for TLS.*begin it with amqps://"):
        RabbitMQ(address, **options.get(how, {}))


@asynccontextmanager
async def listener(greeting: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server that says one thing, answers nonsense, and remembers what it was told."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        while said := await reader.read(4096):
            heard.append(said)
            writer.write(b"HTTP/1.0 400 what?\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], heard
