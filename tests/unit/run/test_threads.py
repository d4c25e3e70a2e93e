"""Functions in threads: whoever waits for one knows when it has ended, and how."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from onward.run.threads import Threads, call_handler, in_thread

WHO: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(1, name="test")
    yield threads
    threads.close()


class Blocking:
    """A function that returns when it is let go."""

    def __init__(self) -> None:
        self.began, self.go_on = asyncio.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> str:
        self._loop.call_soon_threadsafe(self.began.set)
        self.go_on.wait()
        return "done"


async def test_it_sees_the_context_of_whoever_calls_and_changes_only_a_copy(threads: Threads) -> None:
    def who() -> str:
        seen = WHO.get()
        WHO.set("thread")
        return seen

    WHO.set("caller")

    assert (await in_thread(threads, who), WHO.get()) == ("caller", "caller")


@pytest.mark.parametrize(
    "error",
    [
        *(ValueError(), SystemExit(3), KeyboardInterrupt(), GeneratorExit()),
        *(asyncio.CancelledError(), concurrent.futures.CancelledError()),
    ],
    ids=lambda error: f"{type(error).__module__}.{type(error).__name__}",
)
async def test_whatever_it_raises_is_raised(threads: Threads, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        await in_thread(threads, fail)

    assert raised.value is error


async def test_whoever_is_cancelled_still_waits(threads: Threads) -> None:
    blocking = Blocking()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(in_thread(threads, blocking))
        await blocking.began.wait()
        for _ in range(2):
            waiting.cancel()
            await asyncio.sleep(0)

        assert not waiting.done()
        blocking.go_on.set()

    assert waiting.result() == "done"


async def test_unless_the_thread_is_left_to_itself(threads: Threads) -> None:
    blocking = Blocking()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(in_thread(threads, blocking, leaves=lambda: True))
        await blocking.began.wait()
        waiting.cancel()

    blocking.go_on.set()
    assert waiting.cancelled()


async def test_a_coroutine_that_comes_from_a_thread_is_awaited(threads: Threads) -> None:
    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert await call_handler(threads, lambda number: later(number), 7, is_async=False) == 7
    assert await call_handler(threads, later, 7, is_async=True) == 7


async def test_but_does_not_begin_when_it_is_not_wanted_any_more(threads: Threads) -> None:
    blocking, began = Blocking(), list[str]()

    async def later() -> None:
        began.append("later")

    def handler() -> Any:
        blocking()
        return later()

    async with asyncio.TaskGroup() as tasks:
        handling = tasks.create_task(call_handler(threads, handler, is_async=False))
        await blocking.began.wait()
        handling.cancel()
        await asyncio.sleep(0)
        blocking.go_on.set()

    assert handling.cancelled()
    assert began == []


async def test_a_generator_is_refused(threads: Threads) -> None:
    with pytest.raises(TypeError, match="write one that returns"):
        await call_handler(threads, lambda: (number for number in range(3)), is_async=False)


async def test_one_that_blocks_holds_up_no_other() -> None:
    threads, blocking = Threads(2, name="test"), [Blocking(), Blocking()]
    async with asyncio.TaskGroup() as tasks:
        held = tasks.create_task(in_thread(threads, blocking[0]))
        others = [tasks.create_task(in_thread(threads, lambda number=number: number)) for number in range(3)]
        last = tasks.create_task(in_thread(threads, blocking[1]))
        await asyncio.wait(others)
        await blocking[1].began.wait()

        assert not held.done()
        for one in blocking:
            one.go_on.set()

    assert [task.result() for task in (held, *others, last)] == ["done", 0, 1, 2, "done"]
    threads.close()


async def test_a_thread_that_is_awake_goes_on_with_what_waits(threads: Threads) -> None:
    blocking = Blocking()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(in_thread(threads, blocking))
        await blocking.began.wait()
        others = [tasks.create_task(in_thread(threads, threading.get_ident)) for _ in range(3)]
        await asyncio.sleep(0)
        blocking.go_on.set()

    assert len({task.result() for task in others}) == 1


async def test_what_waits_when_they_are_closed_is_still_done(threads: Threads) -> None:
    blocking = Blocking()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(in_thread(threads, blocking))
        await blocking.began.wait()
        waiting = tasks.create_task(in_thread(threads, lambda: "done as well"))
        await asyncio.sleep(0)
        threads.close(wait=False)
        blocking.go_on.set()

    assert waiting.result() == "done as well"
    with pytest.raises(RuntimeError):
        await in_thread(threads, lambda: "too late")


async def test_what_could_not_be_begun_is_not_done_later(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    blocking, done = Blocking(), list[str]()

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(in_thread(threads, blocking))
        await blocking.began.wait()
        with monkeypatch.context() as patch:
            patch.setattr(threads._threads, "submit", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                await in_thread(threads, done.append, "refused")
        blocking.go_on.set()

    await in_thread(threads, done.append, "begun")
    assert done == ["begun"]


async def test_many_at_a_time_all_end() -> None:
    threads = Threads(8, name="test")
    async with asyncio.TaskGroup() as tasks:
        done = [tasks.create_task(in_thread(threads, lambda number=number: number)) for number in range(1_000)]

    assert [task.result() for task in done] == list(range(1_000))
    threads.close()


class Pool:
    """What functions wait for in turn, so many at a time."""

    def __init__(self, size: int) -> None:
        self._free = threading.Semaphore(size)

    def use(self) -> bool:
        """Whether it had to be waited for."""
        had_to_wait = not self._free.acquire(blocking=False)
        if had_to_wait:
            self._free.acquire()
        time.sleep(0.001)
        self._free.release()
        return had_to_wait


async def _use(pool: Pool, threads: Threads, awake: list[int]) -> None:
    waited = False

    def use() -> None:
        nonlocal waited
        waited = pool.use()
        awake.append(threads._awake)

    await in_thread(threads, use, had_to_wait=lambda: waited)


async def test_threads_that_wait_for_each_other_become_fewer() -> None:
    threads, pool, awake = Threads(20, name="test"), Pool(2), list[int]()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(300):
            tasks.create_task(_use(pool, threads, awake))

    assert sum(awake[-200:]) / 200 < 6
    threads.close()


async def test_and_come_back_for_what_would_have_to_wait_for_one_that_blocks() -> None:
    threads, pool, awake = Threads(20, name="test"), Pool(2), list[int]()
    blocking = [Blocking() for _ in range(15)]
    async with asyncio.TaskGroup() as tasks:
        for _ in range(100):
            tasks.create_task(_use(pool, threads, awake))
        for one in blocking:
            tasks.create_task(in_thread(threads, one))
        last = tasks.create_task(in_thread(threads, lambda: "done"))
        try:
            async with asyncio.timeout(5):
                await asyncio.wait([last])
                for one in blocking:
                    await one.began.wait()
        finally:
            for one in blocking:
                one.go_on.set()

    threads.close()


async def test_one_that_had_to_wait_goes_on_where_no_other_is_awake(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.run.threads._LOOK", 600.0)
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        done = [
            tasks.create_task(in_thread(threads, lambda number=number: number, had_to_wait=lambda: True))
            for number in range(100)
        ]

    assert [task.result() for task in done] == list(range(100))
