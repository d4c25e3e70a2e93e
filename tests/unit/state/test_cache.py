"""Lending connections: nobody is left waiting, and nothing is lent that is no longer of use."""

import asyncio

import pytest

from onward.errands import Errands
from onward.state.postgres.cache import ConnectionCache, Lent
from onward.state.postgres.session import Session


class Connection:
    def __init__(self) -> None:
        self.session, self.escaped = Session("me"), False
        self.is_sound, self.is_demoted = True, False
        self.is_to_be_reset = False
        self.resets = 0

    async def reset(self) -> None:
        await asyncio.sleep(0.01)
        if not self.is_sound:
            raise OSError
        self.resets += 1
        self.session.needs_reset = False


class Pool:
    def __init__(self) -> None:
        self.made: list[Connection] = []
        self.free: list[Connection] = []

    async def acquire(self) -> Connection:
        await asyncio.sleep(0)
        if not self.free:
            self.free.append(Connection())
            self.made.append(self.free[-1])
        return self.free.pop()

    async def release(self, connection: Connection) -> None:
        await asyncio.sleep(0)
        if connection.is_sound:
            self.free.append(connection)


@pytest.fixture
def pool() -> Pool:
    return Pool()


class Lending:
    """Blocks that are entered and left one by one."""

    def __init__(self, cache: ConnectionCache[Connection]) -> None:
        self.cache = cache
        self._blocks: dict[Connection, Lent[Connection]] = {}

    async def lend(self) -> Connection:
        block = Lent(self.cache, self.cache.let_go)
        connection = await block.__aenter__()
        self._blocks[connection] = block
        return connection

    async def give_back(self, connection: Connection, error: Exception | None = None) -> None:
        await self._blocks.pop(connection).__aexit__(type(error) if error else None, error, None)


def cache(pool: Pool, size: int = 2) -> Lending:
    return Lending(
        ConnectionCache(size, acquire=pool.acquire, release=pool.release, reset=Connection.reset, errands=Errands())
    )


async def test_the_same_connection_is_lent_again_without_asking_the_pool(pool: Pool) -> None:
    lending = cache(pool)
    first = await lending.lend()
    await lending.give_back(first)

    assert await lending.lend() is first
    assert pool.free == []


@pytest.mark.parametrize("change", ["escaped", "broken", "failed"])
async def test_one_that_may_not_be_as_it_was_goes_back_to_the_pool(pool: Pool, change: str) -> None:
    lending = cache(pool)
    first = await lending.lend()
    if change == "broken":
        first.is_sound = False
    elif change != "failed":
        setattr(first, change, True)
    await lending.give_back(first, OSError() if change == "failed" else None)

    assert pool.free == ([] if change == "broken" else [first])


async def test_one_that_broke_while_at_hand_is_not_lent(pool: Pool) -> None:
    lending = cache(pool)
    first = await lending.lend()
    await lending.give_back(first)
    first.is_sound = False

    assert await lending.lend() is not first


async def test_those_who_wait_get_one_in_turn(pool: Pool) -> None:
    lending, served = cache(pool), list[int]()

    async def work(number: int) -> None:
        connection = await lending.lend()
        served.append(number)
        connection.session.needs_reset = True
        await asyncio.sleep(0.001)
        await lending.give_back(connection)

    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(work(number))

    assert served == list(range(20))
    assert len(pool.made) == 2


async def test_who_is_cancelled_while_waiting_takes_nobodys_turn(pool: Pool) -> None:
    lending = cache(pool, size=1)
    first = await lending.lend()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(lending.lend()) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await lending.give_back(first)

    assert waiting[1].result() is first


async def test_a_pool_that_cannot_connect_keeps_nobodys_turn(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    lending = cache(pool, size=1)

    async def fail() -> Connection:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr(lending.cache, "acquire", fail)
        with pytest.raises(OSError):  # noqa: PT011 - it has no message
            await lending.lend()

    async with asyncio.timeout(5):
        await lending.lend()


async def test_one_that_was_touched_is_handed_on_as_it_is(pool: Pool) -> None:
    lending = cache(pool)
    first = await lending.lend()
    first.session.needs_reset = True
    await lending.give_back(first)

    assert await lending.lend() is first
    assert first.session.needs_reset


async def test_those_for_which_nobody_asks_go_back_to_the_pool_but_for_one_that_needs_no_reset(pool: Pool) -> None:
    lending = cache(pool, size=3)
    lent = [await lending.lend() for _ in range(3)]
    lent[0].session.needs_reset = True
    for connection in lent:
        await lending.give_back(connection)

    async with asyncio.timeout(5):
        while len(pool.free) < 2:
            await asyncio.sleep(0.01)

    assert pool.free == lent[:2]
    assert await lending.lend() is lent[2]


async def test_one_that_was_touched_is_reset_where_it_is_when_nobody_asks_for_it(pool: Pool) -> None:
    lending = cache(pool)
    first = await lending.lend()
    first.session.needs_reset = True
    await lending.give_back(first)

    async with asyncio.timeout(5):
        while not first.resets:
            await asyncio.sleep(0.01)

    assert pool.free == []
    assert await lending.lend() is first
    assert first.resets == 1


async def test_one_that_cannot_be_reset_goes_back_to_the_pool_and_others_are_still_reset(pool: Pool) -> None:
    lending = cache(pool)
    broken = await lending.lend()
    broken.session.needs_reset = True
    await lending.give_back(broken)
    broken.is_sound = False
    async with asyncio.timeout(5):
        while lending.cache.at_hand:
            await asyncio.sleep(0.01)

    other = await lending.lend()
    other.session.needs_reset = True
    await lending.give_back(other)

    assert other is not broken
    async with asyncio.timeout(5):
        while not other.resets:
            await asyncio.sleep(0.01)


async def test_who_asks_while_the_only_one_is_reset_is_lent_it(pool: Pool) -> None:
    lending = cache(pool, size=1)
    first = await lending.lend()
    first.session.needs_reset = True
    await lending.give_back(first)
    async with asyncio.timeout(5):
        while lending.cache.at_hand:
            await asyncio.sleep(0.001)

        assert await lending.lend() is first

    assert first.resets == 1
    assert len(pool.made) == 1


async def test_who_is_cancelled_while_giving_back_has_given_back(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = asyncio.Event()
    release = pool.release

    async def slow(connection: Connection) -> None:
        await let_go.wait()
        await release(connection)

    monkeypatch.setattr(pool, "release", slow)
    lending = cache(pool, size=1)
    first = await lending.lend()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        giving_back = tasks.create_task(lending.give_back(first, OSError()))
        await asyncio.sleep(0)
        for _ in range(3):
            giving_back.cancel()
            await asyncio.sleep(0)
        assert not giving_back.done()
        let_go.set()

    assert giving_back.cancelled()
    assert pool.free == [first]
    async with asyncio.timeout(5):
        assert await lending.lend() is first


async def test_what_comes_back_after_it_was_closed_goes_back_to_the_pool(pool: Pool) -> None:
    lending = cache(pool)
    first = await lending.lend()

    await lending.cache.close()
    await lending.give_back(first)

    assert pool.free == [first]
