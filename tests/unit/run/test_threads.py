"""Functions in threads: whoever waits for one knows when it has ended, and how."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from onward.run.threads import call_handler, in_thread

WHO: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


class Blocking:
    """A function that returns when it is let go."""

    def __init__(self) -> None:
        self.began, self.go_on = asyncio.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> str:
        self._loop.call_soon_threadsafe(self.began.set)
        self.go_on.wait()
        return "done"


async def test_it_sees_the_context_of_whoever_calls_and_changes_only_a_copy(threads: Executor) -> None:
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
async def test_whatever_it_raises_is_raised(threads: Executor, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        await in_thread(threads, fail)

    assert raised.value is error


async def test_whoever_is_cancelled_still_waits(threads: Executor) -> None:
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


async def test_unless_the_thread_is_left_to_itself(threads: Executor) -> None:
    blocking = Blocking()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(in_thread(threads, blocking, leaves=lambda: True))
        await blocking.began.wait()
        waiting.cancel()

    blocking.go_on.set()
    assert waiting.cancelled()


async def test_a_coroutine_that_comes_from_a_thread_is_awaited(threads: Executor) -> None:
    async def later(number: int) -> int:
        await asyncio.sleep(0)
        return number

    assert await call_handler(threads, lambda number: later(number), 7, is_async=False) == 7
    assert await call_handler(threads, later, 7, is_async=True) == 7


async def test_but_does_not_begin_when_it_is_not_wanted_any_more(threads: Executor) -> None:
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


async def test_a_generator_is_refused(threads: Executor) -> None:
    with pytest.raises(TypeError, match="write one that returns"):
        await call_handler(threads, lambda: (number for number in range(3)), is_async=False)
