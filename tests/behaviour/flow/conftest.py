"""Flows on a Redis of the tests' own, a single server and a cluster of three: both are emptied before each test."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

import servers
from flows import QUICK, FlowRecorder
from onward.flow import Flow
from onward.flow.keys import Keys


@pytest.fixture(scope="session")
def flow_redis_url() -> Iterator[str]:
    with servers.private_redis() as instance:
        yield instance.dsn


@pytest.fixture
def recorder() -> FlowRecorder:
    return FlowRecorder()


@pytest.fixture(params=["single", "cluster"])
async def redis(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """A client as the application has one; tests look at the keys with it."""
    client: Any
    if request.param == "single":
        client = Redis.from_url(request.getfixturevalue("flow_redis_url"), decode_responses=True)
    else:
        client = RedisCluster.from_url(request.getfixturevalue("redis_cluster_url"), decode_responses=True)
    async with client:
        await client.flushall()
        yield client


@pytest.fixture
def keys(redis: Any) -> Keys:
    """The names of the keys of the flow `access` on this kind of server."""
    return Keys("access", tagged=isinstance(redis, RedisCluster))


@pytest.fixture
def make_flow(redis: Any, recorder: FlowRecorder) -> Callable[..., Flow[Any]]:
    """Builds flows named `access` whose workers do not wait long."""

    def make(**options: Any) -> Flow[Any]:
        return Flow(options.pop("name", "access"), redis, **{"wait": QUICK, "observers": [recorder], **options})

    return make


@pytest.fixture
def all_keys(redis: Any) -> Callable[[], Any]:
    """Every key there is."""

    async def read() -> set[str]:
        if isinstance(redis, RedisCluster):
            return set(await redis.keys("*", target_nodes=RedisCluster.PRIMARIES))
        return set(await redis.keys("*"))

    return read


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Waits for a condition."""

    async def wait(condition: Callable[[], Any]) -> Any:
        async with asyncio.timeout(10):
            while not (found := await condition()):
                await asyncio.sleep(0.02)
        return found

    return wait
