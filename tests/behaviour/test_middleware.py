"""Middleware around handlers and phases, and the resources of a worker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

import pytest

from onward import Attempt, Backoff, ChainFailed, JobError, LossReason, Onward, Permanent, Slice, SyncTransaction, job
from onward.errors import ConfigurationError, DefinitionError, MissingContext
from support import SOON

QUICK = Backoff(initial=timedelta(milliseconds=20))


@dataclass
class Tenant:
    name: str


class Clock:
    """Something else to provide."""


class FrozenClock(Clock):
    """A stand-in, as tests have."""


class Spy:
    """Middleware with async hooks that notes when each was entered and left."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    @asynccontextmanager
    async def _around(self, what: str) -> AsyncIterator[None]:
        self.notes.append(f"{self.name} {what}")
        try:
            await asyncio.sleep(0)
            yield
        except BaseException as error:
            self.notes.append(f"{self.name} saw {type(error).__name__}")
            raise
        finally:
            self.notes.append(f"{self.name} leaves {what}")

    def around_handler(self, attempt: Attempt[Any]) -> AbstractAsyncContextManager[None]:
        return self._around("handler")

    def around_prepare(self, attempt: Attempt[Any], tx: Any) -> AbstractAsyncContextManager[None]:
        return self._around("prepare")

    def around_complete(self, attempt: Attempt[Any], tx: Any) -> AbstractAsyncContextManager[None]:
        return self._around("complete")


class Tenancy:
    """A plain context manager: fits async def and def handlers alike."""

    def __init__(self, name: str = "acme") -> None:
        self.name = name

    @contextmanager
    def around_handler(self, attempt: Attempt[Any]) -> Iterator[Tenant]:
        yield Tenant(self.name)


class Audit:
    """Writes a row in the transaction of the job, after the handler's block."""

    @asynccontextmanager
    async def around_complete(self, attempt: Attempt[Any], tx: Any) -> AsyncIterator[None]:
        yield
        await tx.execute("INSERT INTO ledger VALUES (:entry)", entry=f"audit {attempt.number}")


class Translator:
    """Turns one error into another."""

    @contextmanager
    def around_handler(self, attempt: Attempt[Any]) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise Permanent(f"no {error.args[0]}") from error


async def make_table(app: Onward) -> None:
    async with app.transaction() as tx:
        await tx.execute("DROP TABLE IF EXISTS ledger")
        await tx.execute("CREATE TABLE ledger (entry text)")


async def entries(app: Onward) -> list[str]:
    async with app.transaction() as tx:
        return [row["entry"] for row in await tx.fetch("SELECT entry FROM ledger ORDER BY entry")]


async def error_of(app: Onward, job_type: Any) -> JobError:
    with pytest.raises(ChainFailed) as failed:
        await (await app.start(job_type, "x")).wait(timeout=SOON)
    assert failed.value.error is not None
    return failed.value.error


# -- the onion


async def test_the_first_middleware_is_the_outermost_around_handler_and_phases(running: Any) -> None:
    notes: list[str] = []
    orders = Slice("orders", middleware=[Spy("outer", notes), Spy("inner", notes)])

    @orders.job("ship")
    async def ship(attempt: Attempt[str]) -> str:
        async with attempt.prepare():
            notes.append("preparing")
        async with attempt.complete():
            notes.append("completing")
            return attempt.input

    app: Onward = await running(orders)

    assert await (await app.start(ship, "x")).wait(timeout=SOON) == "x"

    phases = [("prepare", "preparing"), ("complete", "completing")]
    expected = [
        note
        for phase, inside in phases
        for note in (f"outer {phase}", f"inner {phase}", inside, f"inner leaves {phase}", f"outer leaves {phase}")
    ]
    assert notes == ["outer handler", "inner handler", *expected, "inner leaves handler", "outer leaves handler"]


async def test_types_outside_the_slice_have_none_of_its_middleware(running: Any) -> None:
    notes: list[str] = []
    orders = Slice("orders", middleware=[Spy("spy", notes)])

    @orders.job("ship")
    async def ship(attempt: Attempt[str]) -> str:
        return attempt.input

    @job("plain")
    async def plain(attempt: Attempt[str]) -> str:
        async with attempt.complete():
            return attempt.input

    app: Onward = await running(orders, plain)

    assert await (await app.start(plain, "x")).wait(timeout=SOON) == "x"

    assert notes == []


async def test_an_error_of_the_handler_is_seen_by_every_layer_and_may_be_translated(running: Any) -> None:
    notes: list[str] = []
    orders = Slice("orders", middleware=[Spy("outer", notes), Translator(), Spy("inner", notes)])

    @orders.job("ship")
    async def ship(attempt: Attempt[str]) -> str:
        raise KeyError("parcel")

    app: Onward = await running(orders)

    error = await error_of(app, ship)

    assert (error.type, error.message) == ("Permanent", "no parcel")
    assert [note for note in notes if "saw" in note] == ["inner saw KeyError", "outer saw Permanent"]


async def test_an_error_that_middleware_swallows_counts_all_the_same(running: Any) -> None:
    class Silence:
        @asynccontextmanager
        async def around_handler(self, attempt: Attempt[Any]) -> AsyncIterator[None]:
            with suppress(ValueError):
                yield

    orders = Slice("orders", middleware=[Silence()])

    @orders.job("ship", max_attempts=1)
    async def ship(attempt: Attempt[str]) -> None:
        raise ValueError("lost parcel")

    app: Onward = await running(orders)

    assert (await error_of(app, ship)).message == "lost parcel"


async def test_middleware_can_end_an_attempt_before_the_handler_begins(running: Any) -> None:
    class Gate:
        @contextmanager
        def around_handler(self, attempt: Attempt[Any]) -> Iterator[None]:
            raise Permanent(f"{attempt.input} is not let in")
            yield

    notes: list[str] = []
    orders = Slice("orders", middleware=[Spy("outer", notes), Gate(), Spy("inner", notes)])

    @orders.job("ship")
    async def ship(attempt: Attempt[str]) -> None:
        notes.append("handler")

    app: Onward = await running(orders)

    assert (await error_of(app, ship)).message == "x is not let in"

    assert notes == ["outer handler", "outer saw Permanent", "outer leaves handler"]


async def test_a_cancelled_handler_is_cancelled_through_the_onion(running: Any) -> None:
    notes: list[str] = []
    began = asyncio.Event()
    orders = Slice("orders", middleware=[Spy("spy", notes)])

    @orders.job("ship")
    async def ship(attempt: Attempt[str]) -> None:
        began.set()
        await asyncio.Event().wait()

    app: Onward = await running(orders)
    chain = await app.start(ship, "x")
    await began.wait()

    await app.cancel(chain)
    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=SOON)

    assert failed.value.reason == LossReason.CANCELLED.value
    assert "spy saw CancelledError" in notes


async def test_cancelling_reaches_middleware_that_waits_before_the_handler(running: Any) -> None:
    waiting = asyncio.Event()

    class Slow:
        @asynccontextmanager
        async def around_handler(self, attempt: Attempt[Any]) -> AsyncIterator[None]:
            waiting.set()
            await asyncio.Event().wait()
            yield

    orders = Slice("orders", middleware=[Slow()])

    @orders.job("ship", max_attempts=1, timeout=timedelta(milliseconds=50))
    async def ship(attempt: Attempt[str]) -> None:
        raise AssertionError("not reached")

    app: Onward = await running(orders)

    assert (await error_of(app, ship)).type == "TimeoutError"

    assert waiting.is_set()


# -- values


async def test_values_are_got_by_type_and_the_innermost_wins(running: Any) -> None:
    class Both:
        @asynccontextmanager
        async def around_handler(self, attempt: Attempt[Any]) -> AsyncIterator[list[object]]:
            outer = attempt.get(Tenant)
            yield [Tenant(f"{outer.name} of {attempt.input}"), FrozenClock()]

    orders = Slice("orders", middleware=[Tenancy(), Both()])

    @orders.job("ship")
    async def ship(attempt: Attempt[str]) -> str:
        return f"{attempt.get(Tenant).name}, {type(attempt.get(Clock)).__name__}"

    app: Onward = await running(orders)

    assert await (await app.start(ship, "x")).wait(timeout=SOON) == "acme of x, FrozenClock"


async def test_a_value_that_nothing_provides_is_named_with_what_there_is(running: Any) -> None:
    orders = Slice("orders", middleware=[Tenancy()])

    @orders.job("ship", max_attempts=1)
    async def ship(attempt: Attempt[str]) -> None:
        attempt.get(Clock)

    @job("bare")
    async def bare(attempt: Attempt[str]) -> str:
        with pytest.raises(MissingContext) as missing:
            attempt.get(Clock)
        assert isinstance(missing.value, ConfigurationError)
        assert (missing.value.kind, missing.value.job_type, missing.value.available) == (Clock, "bare", ())
        return str(missing.value)

    app: Onward = await running(orders, bare)

    error = await error_of(app, ship)

    assert error.type == "MissingContext"
    assert "nothing provides Clock to job type 'orders.ship', which has Tenant here" in error.message
    assert "which has nothing here" in await (await app.start(bare, "x")).wait(timeout=SOON)


async def test_what_surrounds_a_phase_is_provided_within_its_block_only(running: Any) -> None:
    class Phased:
        @asynccontextmanager
        async def around_prepare(self, attempt: Attempt[Any], tx: Any) -> AsyncIterator[Tenant]:
            yield Tenant(await tx.fetchval("SELECT 'prepared'"))

        @asynccontextmanager
        async def around_complete(self, attempt: Attempt[Any], tx: Any) -> AsyncIterator[Tenant]:
            yield Tenant(await tx.fetchval("SELECT 'completed'"))

    orders = Slice("orders", middleware=[Phased()])

    @orders.job("ship", max_attempts=1)
    async def ship(attempt: Attempt[str]) -> list[str]:
        async with attempt.prepare(atomic=attempt.input == "atomic"):
            names = [attempt.get(Tenant).name]
        with pytest.raises(MissingContext):
            attempt.get(Tenant)
        async with attempt.complete():
            return [*names, attempt.get(Tenant).name]

    app: Onward = await running(orders)

    for how in ("staged", "atomic"):
        assert await (await app.start(ship, how)).wait(timeout=SOON) == ["prepared", "completed"]


# -- phases


async def test_what_middleware_writes_around_complete_commits_or_rolls_back_with_the_job(running: Any) -> None:
    orders = Slice("orders", middleware=[Audit()])

    @orders.job("ship", backoff=QUICK)
    async def ship(attempt: Attempt[str]) -> int:
        async with attempt.complete() as tx:
            await tx.execute("INSERT INTO ledger VALUES (:entry)", entry=f"shipped {attempt.number}")
            if attempt.input == "fails inside" and attempt.failures == 0:
                raise ValueError("inside")
        if attempt.input == "fails after" and attempt.failures == 0:
            raise ValueError("after")
        return attempt.number

    app: Onward = await running(orders)

    for input, number in (("fits", 1), ("fails inside", 2), ("fails after", 2)):
        await make_table(app)
        assert await (await app.start(ship, input)).wait(timeout=SOON) == number
        assert await entries(app) == [f"audit {number}", f"shipped {number}"]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_error_of_middleware_around_complete_rolls_the_job_back(running: Any, moment: str) -> None:
    class Clumsy:
        @asynccontextmanager
        async def around_complete(self, attempt: Attempt[Any], tx: Any) -> AsyncIterator[None]:
            if moment == "before" and attempt.failures == 0:
                raise ValueError("before")
            yield
            if moment == "after" and attempt.failures == 0:
                raise ValueError("after")

    notes: list[str] = []
    orders = Slice("orders", middleware=[Spy("outer", notes), Clumsy()])

    @orders.job("ship", backoff=QUICK)
    async def ship(attempt: Attempt[str]) -> int:
        async with attempt.complete() as tx:
            await tx.execute("INSERT INTO ledger VALUES (:entry)", entry=f"shipped {attempt.number}")
            return attempt.number

    app: Onward = await running(orders)
    await make_table(app)

    assert await (await app.start(ship, "x")).wait(timeout=SOON) == 2

    assert await entries(app) == ["shipped 2"]
    assert notes.count("outer saw ValueError") == 2


async def test_an_error_in_a_phase_is_translated_before_the_handler_sees_it(running: Any) -> None:
    class Refusal:
        @asynccontextmanager
        async def around_prepare(self, attempt: Attempt[Any], tx: Any) -> AsyncIterator[None]:
            try:
                yield
            except KeyError:
                raise LookupError("translated") from None

        @asynccontextmanager
        async def around_complete(self, attempt: Attempt[Any], tx: Any) -> AsyncIterator[None]:
            with suppress(KeyError):
                yield

    orders = Slice("orders", middleware=[Refusal()])

    @orders.job("ship", max_attempts=1)
    async def ship(attempt: Attempt[str]) -> str:
        with pytest.raises(LookupError, match="translated"):
            async with attempt.prepare():
                raise KeyError("first")
        async with attempt.complete() as tx:
            await tx.execute("INSERT INTO ledger VALUES (:entry)", entry="gone")
            raise KeyError("swallowed, but not for good")
        return "not reached"

    app: Onward = await running(orders)
    await make_table(app)

    assert "not for good" in (await error_of(app, ship)).message

    assert await entries(app) == []


# -- def handlers


async def test_plain_middleware_surrounds_def_handlers_in_their_thread(running: Any) -> None:
    class Threaded:
        @contextmanager
        def around_handler(self, attempt: Attempt[Any, SyncTransaction]) -> Iterator[list[object]]:
            yield [Tenant(threading.current_thread().name.rpartition("_")[0]), Clock()]

        @contextmanager
        def around_complete(self, attempt: Attempt[Any, SyncTransaction], tx: SyncTransaction) -> Iterator[Tenant]:
            yield Tenant(attempt.get(Tenant).name)
            tx.execute("INSERT INTO ledger VALUES (:entry)", entry=f"audit {attempt.number}")

    orders = Slice("orders", middleware=[Translator(), Threaded()])

    @orders.job("ship", backoff=QUICK)
    def ship(attempt: Attempt[str, SyncTransaction]) -> str:
        attempt.get(Clock)
        with attempt.complete() as tx:
            tx.execute("INSERT INTO ledger VALUES (:entry)", entry=f"shipped {attempt.number}")
            if attempt.failures == 0:
                raise ValueError("first time")
            return attempt.get(Tenant).name

    @orders.job("lose")
    def lose(attempt: Attempt[str, SyncTransaction]) -> None:
        raise KeyError("parcel")

    app: Onward = await running(orders)
    await make_table(app)

    assert await (await app.start(ship, "x")).wait(timeout=SOON) == "onward-handler"

    assert await entries(app) == ["audit 2", "shipped 2"]
    assert (await error_of(app, lose)).message == "no parcel"


class Twofold:
    """A context manager of both kinds, so that the same middleware fits everywhere."""

    async def __aenter__(self) -> Tenant:
        return Tenant("async with")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __enter__(self) -> Tenant:
        return Tenant("with")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


async def test_a_context_manager_of_both_kinds_is_entered_as_the_handler_needs(running: Any) -> None:
    class Versatile:
        def around_handler(self, attempt: Attempt[Any]) -> Twofold:
            return Twofold()

    orders = Slice("orders", middleware=[Versatile()])

    @orders.job("loop")
    async def loop(attempt: Attempt[str]) -> str:
        return attempt.get(Tenant).name

    @orders.job("thread")
    def thread(attempt: Attempt[str, SyncTransaction]) -> str:
        return attempt.get(Tenant).name

    app: Onward = await running(orders)

    assert await (await app.start(loop, "x")).wait(timeout=SOON) == "async with"
    assert await (await app.start(thread, "x")).wait(timeout=SOON) == "with"


async def test_async_middleware_of_a_def_handler_is_refused_when_it_runs_if_not_before(running: Any) -> None:
    orders = Slice("orders", middleware=[Spy("spy", [])])  # its hooks do not look async

    @orders.job("ship", max_attempts=1)
    def ship(attempt: Attempt[str, SyncTransaction]) -> None:
        raise AssertionError("not reached")

    app: Onward = await running(orders)

    error = await error_of(app, ship)

    assert error.type == "DefinitionError"
    assert "Spy.around_handler needs an event loop" in error.message


# -- what a worker requires


def required(make_app: Callable[..., Onward], *jobs: Any, middleware: list[Any]) -> tuple[str, ...]:
    with pytest.raises(DefinitionError) as refused:
        make_app(*jobs).worker(required_middleware=middleware)
    return refused.value.problems


async def test_a_worker_names_every_slice_without_the_middleware_it_requires(make_app: Any) -> None:
    tenancy, translator = Tenancy(), Translator()
    whole = Slice("whole", middleware=[tenancy, Audit(), translator])
    turned = Slice("turned", middleware=[translator, tenancy])
    partial = Slice("partial", middleware=[tenancy])
    another = Slice("another", middleware=[Tenancy(), translator])

    async def handle(attempt: Attempt[str]) -> None: ...

    for slice in (whole, turned, partial, another):
        slice.job("one")(handle)
        slice.job("two")(handle)
    bare = job("bare")(handle)

    problems = required(make_app, whole, turned, partial, another, bare, middleware=[tenancy, translator])

    assert problems == (
        "slice 'turned': the worker requires Tenancy, Translator in this order, but it has Translator, Tenancy",
        "slice 'partial': the worker requires Translator, which it lacks",
        "slice 'another': the worker requires Tenancy, which it lacks (its Tenancy is another instance: share one)",
        "bare: it is in no slice, so the worker requires Tenancy, Translator, which it lacks",
    )


async def test_only_the_types_of_the_worker_need_what_it_requires(running: Any) -> None:
    tenancy = Tenancy()
    orders = Slice("orders", middleware=[Translator(), tenancy])

    @orders.job("ship")
    async def ship(attempt: Attempt[str]) -> str:
        return attempt.get(Tenant).name

    @job("bare")
    async def bare(attempt: Attempt[str]) -> None: ...

    app: Onward = await running(orders, bare, worker={"jobs": [ship], "required_middleware": [tenancy]})

    assert await (await app.start(ship, "x")).wait(timeout=SOON) == "acme"


# -- resources


class Opened:
    """A resource that notes its life."""

    def __init__(self, name: str, notes: list[str], *, fails: str = "") -> None:
        self.name, self.notes, self.fails = name, notes, fails

    async def __aenter__(self) -> "Opened":
        if self.fails == "open":
            raise OSError(f"cannot open {self.name}")
        self.notes.append(f"open {self.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.notes.append(f"close {self.name}")
        if self.fails == "close":
            raise OSError(f"cannot close {self.name}")


@job("look")
async def look(attempt: Attempt[str]) -> str:
    return f"{attempt.get(Opened).name}, {attempt.get(Tenant).name}, {type(attempt.get(Clock)).__name__}"


@job("look-plainly")
def look_plainly(attempt: Attempt[str, SyncTransaction]) -> str:
    return attempt.get(Opened).name


async def test_resources_are_opened_once_and_closed_in_reverse_when_the_worker_has_stopped(make_app: Any) -> None:
    notes: list[str] = []

    @asynccontextmanager
    async def tenant() -> AsyncIterator[list[object]]:
        notes.append("open tenant")
        yield [Tenant("acme"), Clock()]
        notes.append("close tenant")

    @contextmanager
    def clock() -> Iterator[Clock]:
        notes.append("open clock")
        yield FrozenClock()
        notes.append("close clock")

    ended = asyncio.Event()

    @job("last")
    async def last(attempt: Attempt[str]) -> None:
        ended.set()
        await asyncio.sleep(0.05)
        notes.append("the last handler ends")

    app: Onward = make_app(look, look_plainly, last)
    async with app:
        async with app.worker(resources=[Opened("first", notes), tenant, clock()], concurrency=4, grace=SOON):
            chains = [await app.start(look, "x"), await app.start(look, "y"), await app.start(look_plainly, "z")]
            found = [await chain.wait(timeout=SOON) for chain in chains]
            await app.start(last, "x")
            await ended.wait()

        assert found == ["first, acme, FrozenClock"] * 2 + ["first"]
        assert notes == [
            "open first", "open tenant", "open clock", "the last handler ends", "close clock", "close tenant",
            "close first",
        ]  # fmt: skip


async def test_middleware_of_the_slice_wins_over_a_resource_of_the_same_type(running: Any) -> None:
    orders = Slice("orders", middleware=[Tenancy("of the slice")])

    @orders.job("ship")
    async def ship(attempt: Attempt[str]) -> str:
        return attempt.get(Tenant).name

    @job("bare")
    async def bare(attempt: Attempt[str]) -> str:
        return attempt.get(Tenant).name

    @contextmanager
    def tenant() -> Iterator[Tenant]:
        yield Tenant("of the worker")

    app: Onward = await running(orders, bare, worker={"resources": [tenant]})

    assert await (await app.start(ship, "x")).wait(timeout=SOON) == "of the slice"
    assert await (await app.start(bare, "x")).wait(timeout=SOON) == "of the worker"


async def test_a_resource_that_does_not_open_fails_the_start_and_the_others_are_closed(make_app: Any) -> None:
    notes: list[str] = []
    failing = [Opened("first", notes), Opened("second", notes, fails="open"), Opened("third", notes)]

    async with make_app(look) as app:
        with pytest.raises(OSError, match="cannot open second"):
            async with app.worker(resources=failing):
                notes.append("started")

        assert notes == ["open first", "close first"]


async def test_a_resource_that_does_not_close_keeps_no_other_open(make_app: Any) -> None:
    notes: list[str] = []
    failing = [Opened("first", notes), Opened("second", notes, fails="close"), Opened("third", notes)]

    async with make_app(look) as app:
        with pytest.raises(ExceptionGroup) as failed:
            async with app.worker(resources=failing):
                pass

        assert failed.group_contains(OSError, match="cannot close second")
        assert notes[3:] == ["close third", "close second", "close first"]


async def test_what_is_no_context_manager_is_refused_as_a_resource(make_app: Any) -> None:
    def make() -> Tenant:
        return Tenant("acme")

    async with make_app(look) as app:
        with pytest.raises(DefinitionError, match="resource make gave Tenant"):
            async with app.worker(resources=[make]):
                pass
