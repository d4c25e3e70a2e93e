"""Which servers and clients a flow takes, and whose keys it leaves alone."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import ConnectionError, RedisError

import servers
from flows import QUICK, SOON, FlowRecorder, places
from onward.errors import ConfigurationError
from onward.flow import Flow, FlowKeysTaken, FlowUnavailable, events


@dataclass
class Item:
    name: str


def one_stage(redis: Any, name: str = "access", stage: str = "check", **options: Any) -> Flow[Any]:
    flow = Flow(name, redis, wait=QUICK, **options)

    @flow.stage(stage)
    async def handle(job: Item) -> None:
        return None

    return flow


async def goes_through(flow: Flow[Any]) -> bool:
    async with flow, flow.workers(3):
        return (await flow.wait(await flow.start(Item("a")), timeout=SOON)).status == "done"


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode_responses", [True, False])
async def test_any_client_lends_its_settings(flow_redis_url: str, protocol: int, decode_responses: bool) -> None:
    options: dict[str, Any] = {"protocol": protocol, "decode_responses": decode_responses}
    # Impatient, and one connection only: workers that block would starve on it.
    pool = BlockingConnectionPool.from_url(flow_redis_url, max_connections=1, socket_timeout=0.05, **options)
    async with Redis(connection_pool=pool) as redis:
        await redis.flushall()
        assert await goes_through(one_stage(redis))
        await pool.disconnect()


async def test_an_address_will_do_also_of_a_cluster(flow_redis_url: str, redis_cluster_url: str) -> None:
    assert await goes_through(one_stage(flow_redis_url))
    assert await goes_through(one_stage(redis_cluster_url, cluster=True))


async def test_a_single_server_may_have_hash_tags(flow_redis_url: str) -> None:
    async with Redis.from_url(flow_redis_url, decode_responses=True) as redis:
        flow = one_stage(redis, cluster=True)
        async with flow:
            await flow.start(Item("a"))
            assert await redis.llen("queue:{access}:check:waiting") == 1


async def test_a_cluster_behind_a_plain_client_is_refused(redis_cluster_url: str) -> None:
    with pytest.raises(ConfigurationError, match="a node of a cluster: pass a RedisCluster"):
        async with one_stage(redis_cluster_url):
            pass
    async with RedisCluster.from_url(redis_cluster_url) as redis:
        with pytest.raises(ConfigurationError, match="there the names of keys need hash tags"):
            one_stage(redis, cluster=False)


async def test_a_client_of_sentinel_is_refused_in_words() -> None:
    redis = Sentinel([("127.0.0.1", 1)]).master_for("mymaster")
    with pytest.raises(ConfigurationError, match="flows do not follow Sentinel"):
        async with one_stage(redis):
            pass


async def test_nobody_there_is_said_at_once_and_may_be_tried_again() -> None:
    with pytest.raises(
        FlowUnavailable, match=r"flow 'access' cannot open: ConnectionError.*try again later"
    ) as refused:
        async with one_stage("redis://127.0.0.1:1"):
            pass
    assert (refused.value.retryable, refused.value.doing, refused.value.flow) == (True, "open", "access")
    assert isinstance(refused.value.__cause__, ConnectionError)


async def test_wrong_credentials_are_not_worth_another_try() -> None:
    with servers.private_redis() as server:
        async with Redis.from_url(server.dsn) as redis:
            await redis.config_set("requirepass", "secret")
        for address in (server.dsn, server.dsn.replace("redis://", "redis://:wrong@")):
            with pytest.raises(FlowUnavailable, match="trying again will not help: look at the address") as refused:
                async with one_stage(address):
                    pass
            assert not refused.value.retryable
            assert isinstance(refused.value.__cause__, RedisError)


async def test_callers_get_errors_of_ours_when_redis_is_away_or_refuses() -> None:
    with servers.private_redis() as server:
        async with one_stage(server.dsn, index=["name"]) as flow:
            job_id = await flow.start(Item("a"))
            async with Redis.from_url(server.dsn) as redis:
                await redis.set(f"job:access:{job_id}", "spoiled")
            with pytest.raises(FlowUnavailable, match="WRONGTYPE") as refused:
                await flow.get(job_id)
            assert not refused.value.retryable

            await asyncio.to_thread(server.stop)
            calls = {
                "start": flow.start(Item("b")), "get": flow.get(job_id), "wait": flow.wait(job_id, timeout=SOON),
                "find": flow.find("name", "a"), "look": flow.positions(), "retry": flow.retry(job_id),
                "delete": flow.delete(job_id),
            }  # fmt: skip
            for call in calls.values():
                with pytest.raises(FlowUnavailable) as away:
                    await call
                assert away.value.retryable


async def test_a_cluster_with_one_primary_will_do() -> None:
    with servers.private_redis(cluster_enabled="yes", cluster_port=str(free_port())) as server:
        async with Redis.from_url(server.dsn, decode_responses=True) as node:
            await node.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
            while (await node.execute_command("CLUSTER INFO"))["cluster_state"] != "ok":
                await asyncio.sleep(0.05)
        assert await goes_through(one_stage(server.dsn, cluster=True))
        for decode_responses in (False, True):
            async with RedisCluster.from_url(server.dsn, decode_responses=decode_responses) as redis:
                assert await goes_through(one_stage(redis))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def old_redis() -> AsyncIterator[str]:
    """Something that answers like Redis 6.0, which nobody installs any more."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while command := await reader.readline():
            if command.upper().startswith((b"CLIENT", b"SELECT", b"HELLO", b"AUTH")):
                writer.write(b"+OK\r\n" if not command.upper().startswith(b"HELLO") else b"-ERR unknown command\r\n")
            elif command.strip().upper() == b"INFO":
                text = b"redis_version:6.0.16\r\nredis_mode:standalone\r\n"
                writer.write(b"$%d\r\n%s\r\n" % (len(text), text))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}?protocol=2"


async def test_a_redis_without_blmove_is_refused_in_words() -> None:
    async with old_redis() as address:
        with pytest.raises(
            ConfigurationError, match=r"this Redis is version 6.0.16; flows need BLMOVE, so 6.2 or newer"
        ):
            async with one_stage(address):
                pass


async def test_two_flows_on_one_server_cannot_have_stages_of_one_name(
    make_flow: Callable[..., Flow[Any]], redis: Any
) -> None:
    async with one_stage(redis):
        if isinstance(redis, RedisCluster):
            assert await goes_through(one_stage(redis, name="other"))
        else:
            with pytest.raises(FlowKeysTaken, match=r"queue:check:waiting, which belongs to flow 'access': .*rename"):
                async with one_stage(redis, name="other"):
                    pass
            assert await goes_through(one_stage(redis, name="other", stage="other-check"))
        assert await goes_through(one_stage(redis))


async def test_a_key_of_somebody_else_is_left_alone(redis: Any, keys: Any) -> None:
    await redis.set(keys.queue("check", "waiting"), "mine")

    with pytest.raises(FlowKeysTaken, match="check:waiting, which is a string and should be a list"):
        async with one_stage(redis):
            pass
    assert await redis.get(keys.queue("check", "waiting")) == "mine"


async def test_a_key_taken_while_working_is_reported_and_got_over(redis: Any, keys: Any, recorder: Any) -> None:
    flow = one_stage(redis, observers=[recorder])
    async with flow, flow.workers():
        await redis.set(keys.queue("check", "waiting"), "mine")
        assert "WRONGTYPE" in (await recorder.next(events.RedisError)).error.message
        await redis.delete(keys.queue("check", "waiting"))
        assert (await flow.wait(await flow.start(Item("a")), timeout=SOON)).status == "done"


async def test_an_observer_that_raises_disturbs_nobody(redis: Any, caplog: pytest.LogCaptureFixture) -> None:
    def raises(event: Any) -> None:
        raise RuntimeError("observer")

    assert await goes_through(one_stage(redis, observers=[raises], keep=timedelta(seconds=1)))
    assert "observer" in caplog.text


async def test_an_observer_that_is_a_coroutine_function_is_awaited(redis: Any) -> None:
    heard: list[Any] = []

    async def hear(event: Any) -> None:
        await asyncio.sleep(0)
        heard.append(type(event))

    assert await goes_through(one_stage(redis, observers=[hear], keep=timedelta(seconds=1)))
    assert events.JobDone in heard
    assert heard[-1] is events.WorkerStopped


async def test_a_slot_that_moves_to_another_node_is_followed(redis_cluster_url: str, recorder: FlowRecorder) -> None:
    running, go_on = asyncio.Event(), asyncio.Event()
    async with RedisCluster.from_url(redis_cluster_url, decode_responses=True) as redis:
        await redis.flushall()
        flow = Flow("access", redis, wait=QUICK, index=["name"], observers=[recorder])

        @flow.stage("check", next="count")
        async def check(job: Item) -> None:
            running.set()
            await go_on.wait()

        @flow.stage("count")
        async def count(job: Item) -> None:
            return None

        async with flow, flow.workers({"check": 1, "count": 2}, janitor=QUICK):
            ids = await flow.start_many(Item(str(n)) for n in range(20))
            await running.wait()

            async def midway() -> None:
                """The job's hash and lock are here, its queues are there: completing it must wait."""
                go_on.set()
                while not [error for error in recorder.of(events.RedisError) if error.doing == "complete"]:
                    await asyncio.sleep(0.01)
                assert "completed-queue" not in await redis.hgetall(f"job:{{access}}:{ids[0]}")

            await move_slot(redis, "{access}", last=ids[0], midway=midway)
            ids.append(await flow.start(Item("late")))
            for job_id in ids:
                await flow.wait(job_id, timeout=SOON)
            assert places(await flow.positions()) == dict.fromkeys(ids, (None, "done"))
    assert len(recorder.of(events.StageCompleted)) == 2 * len(ids)
    assert recorder.of(events.LockExpired) == []


@pytest.mark.chaos
async def test_a_node_that_is_killed_takes_no_job_with_it() -> None:
    """Its replica takes over. Redis copies a moment later: what is asserted of is what the replica has."""
    ran: list[str] = []
    with servers.private_redis_cluster(replicas=True) as nodes:
        flow: Flow[Any] = Flow("access", nodes[0].dsn, cluster=True, wait=QUICK)

        @flow.stage("check", next="count", lock=timedelta(seconds=2))
        async def check(job: Item) -> None:
            ran.append(job.name)

        @flow.stage("count", lock=timedelta(seconds=2))
        async def count(job: Item) -> None:
            await asyncio.sleep(0.01)

        async with flow:
            ids = await flow.start_many(Item(str(n)) for n in range(100))
            holder = await asyncio.to_thread(servers.copied_to_replica, nodes, f"job:{{access}}:{ids[0]}")
            async with flow.workers(2, janitor=QUICK):
                while len(ran) < 10:
                    await asyncio.sleep(0.01)
                await asyncio.to_thread(holder.stop, "kill")
                async with asyncio.timeout(3 * SOON.total_seconds()):
                    while ids:
                        with suppress(FlowUnavailable):
                            await flow.wait(ids[-1], timeout=3 * SOON)
                            ids.pop()


async def move_slot(redis: Any, key: str, *, last: str, midway: Callable[[], Awaitable[None]]) -> None:
    """Give the slot of a key to another master, with its keys, as `redis-cli --cluster reshard` does."""
    slot = redis.keyslot(key)
    source = redis.get_node_from_key(key)
    target = next(node for node in redis.get_primaries() if node.name != source.name)
    names = {node.name: await redis.execute_command("CLUSTER MYID", target_nodes=node) for node in (source, target)}

    async def tell(node: Any, *words: Any) -> Any:
        return await redis.execute_command(*words, target_nodes=node)

    await tell(target, "CLUSTER SETSLOT", slot, "IMPORTING", names[source.name])
    await tell(source, "CLUSTER SETSLOT", slot, "MIGRATING", names[target.name])
    found = await tell(source, "CLUSTER GETKEYSINSLOT", slot, 1_000)
    first, rest = [one for one in found if last not in one], [one for one in found if last in one]
    await tell(source, "MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *first)
    await midway()
    await tell(source, "MIGRATE", target.host, target.port, "", 0, 5000, "KEYS", *rest)
    for node in (target, *(node for node in redis.get_primaries() if node.name != target.name)):
        await tell(node, "CLUSTER SETSLOT", slot, "NODE", names[target.name])
