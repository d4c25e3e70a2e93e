"""The queue conformance suite over every provider."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from onward.queue.contract import ProviderFactory
from onward.queue.providers.memory import Memory
from onward.queue.providers.rabbitmq import RabbitMQ
from onward.queue.providers.redis import Redis
from onward.testing.queue.suite import *  # noqa: F403


@dataclass(frozen=True)
class Backend:
    name: str
    place: str
    """The fixture that knows the address."""
    make: Callable[[Any], Callable[[], ProviderFactory[Any]]]
    """address → what makes one more factory on it."""


def in_memory(_: None) -> Callable[[], ProviderFactory[Any]]:
    memory = Memory()  # there is no other process: everybody has this one
    return lambda: memory


def in_redis(url: str) -> Callable[[], ProviderFactory[Any]]:
    return lambda: Redis(url)


def in_redis_cluster(url: str) -> Callable[[], ProviderFactory[Any]]:
    return lambda: Redis(url, cluster=True)


BACKENDS = [
    Backend("memory", "nowhere", in_memory),
    Backend("rabbitmq-quorum", "rabbitmq_url", lambda url: lambda: RabbitMQ(url)),
    Backend("rabbitmq-classic", "rabbitmq_url", lambda url: lambda: RabbitMQ(url, queue_type="classic")),
    Backend("redis", "redis_url", in_redis),
    Backend("redis-cluster", "redis_cluster_url", in_redis_cluster),
]


@pytest.fixture
def nowhere() -> None: ...


@pytest.fixture
def queue_name() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def make_factory(request: pytest.FixtureRequest) -> Callable[[], ProviderFactory[Any]]:
    return request.param.make(request.getfixturevalue(request.param.place))
