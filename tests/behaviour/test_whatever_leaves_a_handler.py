"""Whatever leaves a handler, its middleware or an observer ends that attempt, and nothing else."""

import asyncio
import concurrent.futures
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from onward import Attempt, Backoff, ChainFailed, JobType, Next, Onward, Outcome, Slice, job
from onward.errors import JobAlreadyCompleted
from onward.observe.events import Event, JobCompleted
from support import SOON

SOON_AGAIN = Backoff(initial=timedelta(milliseconds=1))


class Panic(BaseException):
    """What a panic in Rust looks like from Python."""


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Unspeakable(Exception):
    def __str__(self) -> str:
        sys.exit("no text either")


class Unlookable(Exception):
    @property
    def sqlstate(self) -> str:
        raise ValueError("not even looked at")


async def cancel_a_part() -> NoReturn:
    async with asyncio.TaskGroup() as tasks:
        part = tasks.create_task(asyncio.sleep(SOON.total_seconds()))
        part.cancel()
        await part
    raise AssertionError("not reached")


async def cancel_itself() -> NoReturn:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(SOON.total_seconds())
    raise AssertionError("not reached")


def raising(error: BaseException) -> Callable[[], Any]:
    async def act() -> NoReturn:
        raise error

    return act


@pytest.mark.parametrize(
    "act",
    [
        cancel_a_part,
        cancel_itself,
        raising(asyncio.CancelledError()),
        raising(SystemExit(3)),
        raising(Panic("rust panicked")),
        raising(KeyboardInterrupt()),
        raising(GeneratorExit()),
        raising(Wordless()),
        raising(Unspeakable()),
        raising(Exception("\ud800 \0" * 10_000)),
        raising(BaseExceptionGroup("several", [Panic(), Wordless()])),
    ],
    ids=lambda act: act.__name__,
)
async def test_it_counts_and_the_worker_goes_on(running: Any, act: Callable[[], Any]) -> None:
    @job("odd", max_attempts=2, backoff=SOON_AGAIN)
    async def odd(attempt: Attempt[int]) -> None:
        await act()

    @job("fine")
    async def fine(attempt: Attempt[int]) -> int:
        return attempt.input

    app: Onward = await running(odd, fine)
    chain = await app.start(odd, 1)

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    stored = (await chain.get()).current
    assert (failed.value.reason, stored.attempt, stored.failures, len(stored.errors)) == ("attempts", 2, 2, 2)
    assert await (await app.start(fine, 7)).wait(timeout=SOON) == 7


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        concurrent.futures.CancelledError(),
        SystemExit(3),
        Panic("rust panicked"),
        KeyboardInterrupt(),
        StopIteration(3),
        Wordless(),
    ],
    ids=lambda error: type(error).__module__ + type(error).__name__,
)
async def test_it_counts_in_a_thread_too(running: Any, error: BaseException) -> None:
    @job("odd", max_attempts=2, backoff=SOON_AGAIN)
    def odd(attempt: Attempt[int]) -> None:
        raise error

    @job("fine")
    def fine(attempt: Attempt[int]) -> int:
        return attempt.input

    app: Onward = await running(odd, fine)
    chain = await app.start(odd, 1)

    with pytest.raises(ChainFailed):
        await chain.wait(timeout=SOON)

    assert (await chain.get()).current.failures == 2
    assert await (await app.start(fine, 7)).wait(timeout=SOON) == 7


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), SystemExit(3), Wordless(), Unlookable()], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("hook", ["around_handler", "around_prepare", "around_complete"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_it_counts_when_middleware_raises_it(running: Any, error: BaseException, hook: str, when: str) -> None:
    @asynccontextmanager
    async def around(*_: object) -> AsyncIterator[None]:
        if when == "before":
            raise error
        yield
        raise error

    slice = Slice("odd", middleware=[type("Odd", (), {hook: around})()])

    @slice.job("job", max_attempts=1)
    async def odd(attempt: Attempt[int]) -> int:
        async with attempt.prepare():
            pass
        async with attempt.complete():
            return 1

    app: Onward = await running(slice)

    with pytest.raises(ChainFailed) as failed:
        await (await app.start(odd, 1)).wait(timeout=SOON)

    assert failed.value.error is not None
    assert failed.value.error.type == type(error).__name__


async def test_an_observer_that_raises_anything_stops_nobody(make_app: Any) -> None:
    class Odd:
        def wants(self, kind: type[Event]) -> bool:
            return kind is JobCompleted

        def observe(self, event: Event) -> None:
            sys.exit(3)

    @job("fine")
    async def fine(attempt: Attempt[int]) -> int:
        return attempt.input

    async with make_app(fine, observers=[Odd()]) as app, app.worker():
        assert await (await app.start(fine, 7)).wait(timeout=SOON) == 7


@pytest.mark.parametrize("judge", [lambda error: error.sqlstate == "XX000", lambda error: sys.exit(3)])
async def test_a_predicate_of_the_application_that_raises_is_taken_for_no(running: Any, judge: Any) -> None:
    @job("buggy", max_attempts=1)
    async def buggy(attempt: Attempt[int]) -> None:
        async with attempt.complete():
            raise KeyError("a bug")

    app: Onward = await running(buggy, is_transient=judge)

    with pytest.raises(ChainFailed) as failed:
        await (await app.start(buggy, 1)).wait(timeout=SOON)

    assert failed.value.error is not None
    assert failed.value.error.type == "KeyError"


async def test_losing_the_job_of_somebody_else_is_an_error_like_any_other(running: Any) -> None:
    approve = JobType("approve", input=int, output=int)

    @job("approves twice", max_attempts=1)
    async def approves_twice(attempt: Attempt[str]) -> None:
        async with app.complete(first) as todo:
            await todo.done(1)
        async with app.complete(first) as todo:
            await todo.done(2)

    app: Onward = await running(approve, approves_twice)
    first = await app.start(approve, 1)
    chain = await app.start(approves_twice, "")

    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert failed.value.error is not None
    assert failed.value.error.type == JobAlreadyCompleted.__name__


async def test_an_action_after_the_commit_that_raises_takes_nothing_back(running: Any) -> None:
    told: list[str] = []

    @job("second", internal=True)
    async def second(attempt: Attempt[int]) -> int:
        return attempt.input

    @job("first", continues_to=[second], max_attempts=1)
    async def first(attempt: Attempt[int]) -> Next[int]:
        async with attempt.complete() as tx:
            tx.after_commit(lambda: sys.exit("the cache is away"))
            tx.after_commit(lambda: told.append("handler"))
            return attempt.continue_with(second, attempt.input)

    app: Onward = await running(first, second)
    async with app.transaction() as tx:
        tx.after_commit(lambda: 1 / 0)
        tx.after_commit(lambda: told.append("caller"))
        chain = await app.start(first, 7, tx=tx)

    assert await chain.wait(timeout=SOON) == 7
    assert told == ["caller", "handler"]


# -- an attempt ends once, by what is returned


async def fails_with(app: Onward, chain_type: Any) -> str:
    with pytest.raises(ChainFailed) as failed:
        await (await app.start(chain_type, 1)).wait(timeout=SOON)
    assert failed.value.error is not None
    return f"{failed.value.error.type}: {failed.value.error.message}"


@job("last", internal=True)
async def last(attempt: Attempt[int]) -> int:
    return attempt.input


async def test_a_second_continuation_is_refused(running: Any) -> None:
    @job("twice", continues_to=[last], max_attempts=1)
    async def twice(attempt: Attempt[int]) -> Next[int]:
        async with attempt.complete():
            attempt.continue_with(last, 1)
            return attempt.continue_with(last, 2)

    app: Onward = await running(twice, last)

    assert (await fails_with(app, twice)).startswith("PhaseError: attempt.continue_with(last, …) after")
    assert [found.type_name for found in (await app.jobs()).items] == ["twice"]


async def test_a_continuation_that_is_not_returned_is_refused(running: Any) -> None:
    @job("forgets", continues_to=[last], max_attempts=1)
    async def forgets(attempt: Attempt[int]) -> Outcome[int | None]:
        async with attempt.complete():
            attempt.continue_with(last, 1)
        return None  # type: ignore[return-value]

    app: Onward = await running(forgets, last)

    assert "`return attempt.continue_with(last, …)`" in await fails_with(app, forgets)


async def test_a_def_handler_that_returns_a_coroutine_is_told_so(running: Any) -> None:
    async def work() -> int:
        return 1

    @job("sync", max_attempts=1)
    def sync(attempt: Attempt[int]) -> int:
        return work()  # type: ignore[return-value]

    app: Onward = await running(sync)

    assert "returned a coroutine" in await fails_with(app, sync)
