"""The queue conformance suite over every provider."""

import asyncio
import runpy
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from aiobotocore.session import get_session

from onward import Onward
from onward.conformance.queue.session import KEPT
from onward.conformance.queue.suite import *  # noqa: F403
from onward.queue import Keep, Queue
from onward.queue.provider import ProviderFactory
from onward.queue.providers.bullmq import BullMQ
from onward.queue.providers.database import Database
from onward.queue.providers.memory import Memory
from onward.queue.providers.nats import Nats
from onward.queue.providers.rabbitmq import RabbitMQ
from onward.queue.providers.redis import Redis
from onward.queue.providers.sqs import SQS, NewQueue, SQSProvider
from onward.queue.providers.sqs.calls import found_or_made
from servers import SQS_CLIENT

AWS = get_session()
"""One for all tests: reading the descriptions of AWS takes longer than a test."""


Make: TypeAlias = Callable[..., ProviderFactory[Any]]
SECOND = timedelta(seconds=1)
EXAMPLE = Path(__file__).parents[2] / "examples" / "emails.py"


@dataclass(frozen=True)
class Backend:
    name: str
    place: str
    """The fixture that knows the address."""
    make: Callable[[Any], Make]
    """address → what makes one more factory on it."""


def kept(brief: bool) -> dict[str, Any]:
    few = Keep(count=KEPT, age=timedelta(days=1))
    return {"keep_completed": few, "keep_failed": few} if brief else {}


def leased(brief: bool) -> dict[str, Any]:
    return {"lease": SECOND, **kept(brief)} if brief else {}


def in_memory(_: None) -> Make:
    memory = Memory(**kept(brief=True))  # there is no other process: everybody has this one
    return lambda brief=False: memory


def in_database(target: str) -> Make:
    return lambda brief=False: Database(Onward(target, jobs=[], migrate=True), **leased(brief))


def in_redis(url: str) -> Make:
    return lambda brief=False: Redis(url, **leased(brief))


def in_redis_cluster(url: str) -> Make:
    return lambda brief=False: Redis(url, cluster=True, **leased(brief))


def in_bullmq(url: str) -> Make:
    quick = {"lock": SECOND, "stalled_interval": SECOND / 4}
    return lambda brief=False: BullMQ(url, **(quick if brief else {}), **kept(brief))


def in_nats(url: str) -> Make:
    return lambda brief=False: Nats(url, wait=SECOND, **leased(brief))


def in_rabbitmq(url: str, **options: Any) -> Make:
    return lambda brief=False: RabbitMQ(url, **options)


class BriefSQS(SQS):
    """Its queues show jobs again after a second, also those that were there: who adds has made it before who dies."""

    def for_queue(self, queue_name: str) -> SQSProvider:
        provider = super().for_queue(queue_name)
        open_as_it_is = provider._open

        async def opened() -> None:
            calls = await self.hold()
            try:
                facts = await found_or_made(calls, queue_name, self.create)
                await calls("set_queue_attributes", QueueUrl=facts.url, Attributes={"VisibilityTimeout": "1"})
            finally:
                await self.let_go()
            await open_as_it_is()

        provider._open = opened  # type: ignore[method-assign]
        return provider


def at_sqs(url: str) -> Make:
    return lambda brief=False: (BriefSQS if brief else SQS)(
        url, create=NewQueue(attempts=3), wait=SECOND, session=AWS, **SQS_CLIENT
    )


BACKENDS = [
    Backend("memory", "nowhere", in_memory),
    Backend("rabbitmq-quorum", "rabbitmq_url", in_rabbitmq),
    Backend("rabbitmq-classic", "rabbitmq_url", lambda url: in_rabbitmq(url, queue_type="classic")),
    Backend("sqlite", "sqlite_address", in_database),
    Backend("postgres", "postgres_dsn", in_database),
    Backend("redis", "redis_url", in_redis),
    Backend("redis-cluster", "redis_cluster_url", in_redis_cluster),
    Backend("bullmq", "redis_url", in_bullmq),
    Backend("sqs", "sqs_url", at_sqs),
    Backend("nats", "nats_url", in_nats),
]


@pytest.fixture
def nowhere() -> None: ...


@pytest.fixture
def sqlite_address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queues.db"


@pytest.fixture
def queue_name() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def make_factory(request: pytest.FixtureRequest) -> Make:
    return request.param.make(request.getfixturevalue(request.param.place))


async def test_the_same_program_runs_by_changing_one_line(
    make_factory: Make, queue_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    provider = make_factory()
    async with asyncio.timeout(60):
        sent = await runpy.run_path(str(EXAMPLE))["program"](provider, queue_name)
        async with Queue[Any](queue_name, provider=provider) as queue:
            capabilities = queue.capabilities
            await queue.delete()

    expected = ["ada", "edsger", "grace"] + ["nobody"] * capabilities.dead_letters + ["ada"] * capabilities.pausing
    assert sorted(sent) == sorted(expected)
