"""What has ended is pruned in the background, by one worker at a time, and when somebody asks for it."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from onward import Attempt, ChainFailed, Deduplication, Onward, Permanent, Retention, job
from onward.errors import ConfigurationError, DefinitionError, TransactionError, TransactionOpen, UnknownJobType
from onward.lifecycle.pruning import kept_by
from onward.observe import events
from onward.queue import Queue, QueueWorker
from onward.queue.providers.database import Database
from onward.state.contract import Pruned, PruningTurn
from onward.worker.chores import Chores
from onward.worker.pruning import Pruning
from support import SOON, ClockOf, Recorder

DAY = timedelta(days=1)


@job("note")
async def note(attempt: Attempt[int]) -> int:
    if attempt.input < 0:
        raise Permanent("negative")
    return attempt.input


@job("ledger", retention=None)
async def ledger(attempt: Attempt[int]) -> int:
    return attempt.input


@job("probe", retention=Retention(completed=timedelta(hours=1), failed=None))
async def probe(attempt: Attempt[int]) -> int:
    if attempt.input < 0:
        raise Permanent("negative")
    return attempt.input


class Watched:
    """An app whose worker prunes at once; its clock, and what its worker asked for."""

    def __init__(self, app: Onward) -> None:
        self.app, self.walks = app, list[tuple[str, float | None]]()
        self._prune, self._loop = app.state.prune, asyncio.get_running_loop()
        self._take_turn = app.state.take_pruning_turn
        app.state.prune = self._watched  # type: ignore[method-assign]
        app.state.take_pruning_turn = self._turn  # type: ignore[method-assign]
        self.begin()

    def begin(self) -> None:
        """As another process that has just begun, and looks at once."""
        pruning = Pruning(self.app.store, lambda: kept_by(self.app.registry), first_after=(0.0, 0.0))
        self.app._chores = Chores(self.app.store, [pruning])
        self.walks.clear()
        self.pruned, self.turns = asyncio.Semaphore(0), asyncio.Semaphore(0)

    def later(self, by: timedelta) -> None:
        self.app.state.clock = ClockOf(lambda: datetime.now(UTC) + by)

    def _watched(self, rules: Any, **options: Any) -> Any:
        def seen(pruned: Pruned) -> Pruned:
            self._loop.call_soon_threadsafe(self.pruned.release)
            return pruned

        self.walks.append((options["place"], options.get("before")))
        return self._prune(rules, **options).then(seen)

    def _turn(self, **options: Any) -> Any:
        def seen(turn: PruningTurn) -> PruningTurn:
            self._loop.call_soon_threadsafe(self.turns.release)
            return turn

        return self._take_turn(**options).then(seen)

    async def until(self, batches: int, *, turns: int = 0) -> None:
        async with asyncio.timeout(SOON.total_seconds()):
            for _ in range(turns):
                await self.turns.acquire()
            for _ in range(batches):
                await self.pruned.acquire()


async def test_workers_prune_what_was_kept_for_long_enough(make_app: Callable[..., Onward], recorder: Recorder) -> None:
    watched = Watched(make_app(note, ledger, probe))
    app = watched.app
    async with app:
        async with app.worker(concurrency=5):
            done, kept, own = [await app.start(kind, 1, id=uuid4()) for kind in (note, ledger, probe)]
            broken, broken_probe = [await app.start(kind, -1) for kind in (note, probe)]
            for chain in (done, kept, own):
                await chain.wait(timeout=SOON)
            for chain in (broken, broken_probe):
                with pytest.raises(ChainFailed):
                    await chain.wait(timeout=SOON)
            waiting = await app.start(note, 1, delay=timedelta(days=900))

        for days, gone in ((0.1, [own]), (8, [own, done]), (31, [own, done, broken])):
            watched.later(days * DAY)
            watched.begin()
            async with app.worker():
                await watched.until(4, turns=2)  # three ages, and everything; then whether it is still its turn
            left = {chain.id async for chain in app.chains()}
            assert left == {each.id for each in (done, kept, own, broken, broken_probe, waiting) if each not in gone}

    told = recorder.of(events.ChainsPruned)
    assert (sum(e.completed for e in told), sum(e.failed for e in told), sum(e.jobs for e in told)) == (2, 1, 3)
    assert not recorder.of(events.ChainDeleted)


async def test_of_several_processes_one_prunes_and_another_goes_on_where_it_ended(
    make_app: Callable[..., Onward],
) -> None:
    one, two = Watched(make_app(note)), Watched(make_app(note))
    async with one.app, two.app:
        async with one.app.worker():
            await (await one.app.start(note, 1)).wait(timeout=SOON)
            await one.until(3, turns=2)  # both ages, and everything; it leaves behind how far it came
            async with two.app.worker():
                await (await two.app.start(note, 1)).wait(timeout=SOON)
            assert two.walks == []

        week = (one.walks[0][1], [before for _, before in one.walks])
        assert week == (7 * 86400.0 + 3600.0, [7 * 86400.0 + 3600.0, 30 * 86400.0 + 3600.0, None])
        two.later(timedelta(minutes=10))
        two.begin()
        async with two.app.worker():
            await two.until(2)

    assert [place for place, _ in one.walks] == ["", "", ""]
    assert [bool(place) for place, _ in two.walks] == [True, True]  # and not through everything again, so soon


async def test_apps_of_other_types_prune_beside_one_another(make_app: Callable[..., Onward]) -> None:
    one, two = Watched(make_app(note)), Watched(make_app(probe))
    async with one.app, two.app:
        async with two.app.worker():
            chain = await two.app.start(probe, 1, id=uuid4())
            await chain.wait(timeout=SOON)
        async with one.app.worker():
            await one.until(3, turns=2)
            two.later(DAY)
            two.begin()
            async with two.app.worker():
                await two.until(2)
            left = [chain.id async for chain in two.app.chains()]

    assert left == []


async def test_an_app_may_keep_everything(make_app: Callable[..., Onward]) -> None:
    app = make_app(note, retention=None)
    assert Pruning.name not in app._chores.names

    async with app:
        async with app.worker():
            await (await app.start(note, 1)).wait(timeout=SOON)
        app.state.clock = ClockOf(lambda: datetime.now(UTC) + 1000 * DAY)

        assert await app.prune() == 0
        assert await app.prune(note, older_than=DAY) == 1


async def test_what_a_queue_keeps_is_the_queues_own(make_app: Callable[..., Onward]) -> None:
    watched = Watched(make_app(note))
    app = watched.app
    done = asyncio.Event()

    async def handle(data: Any, job: Any) -> str:
        done.set()
        return "sent"

    async with app, Queue("emails", provider=Database(app)) as queue:
        added = await queue.add("welcome", {"to": "a"})
        async with QueueWorker("emails", handle, provider=Database(app)):
            await asyncio.wait_for(done.wait(), SOON.total_seconds())
        watched.later(1000 * DAY)
        async with app.worker():
            await watched.until(3)
        assert await app.prune(older_than=DAY) == 0

        kept = await queue.get_job(added.id)
        assert kept is not None
        assert await app.prune("queue:emails", older_than=DAY) == 1


async def test_pruning_now(running: Callable[..., Any], recorder: Recorder) -> None:
    app = await running(note, probe, retention=Retention(completed=10 * DAY, failed=None), worker={"concurrency": 50})
    chains = await app.start_many([note.with_input(n) for n in range(120)])
    broken, probed = await app.start(note, -1), await app.start(probe, 1)
    for chain in (*chains, probed):
        await chain.wait(timeout=SOON)
    with pytest.raises(ChainFailed):
        await broken.wait(timeout=SOON)
    assert await app.prune() == 0
    app.state.clock = ClockOf(lambda: datetime.now(UTC) + 9 * DAY)
    counts: list[int] = []

    assert await app.prune(probe, status="failed", older_than=DAY) == 0
    assert await app.prune() == 1  # the probe
    assert await app.prune(note, older_than=DAY, status="completed", limit=7) == 7
    assert await app.prune(note, status="completed", older_than=DAY, progress=counts.append) == 113
    assert (counts[-1], counts) == (113, sorted(counts))
    assert [chain.id async for chain in app.chains()] == [broken.id]
    app.state.clock = ClockOf(lambda: datetime.now(UTC) + 1000 * DAY)
    assert await app.prune() == 0  # failed=None
    assert await app.prune("note", older_than=timedelta()) == 1
    assert sum(event.jobs for event in recorder.of(events.ChainsPruned)) == 122


async def test_pruning_without_an_event_loop(make_app: Callable[..., Onward]) -> None:
    app = make_app(note)
    async with app, app.worker():
        await (await app.start(note, 1)).wait(timeout=SOON)

    def use() -> list[int]:
        with app.sync as client:
            return [client.prune(note), client.prune(note, older_than=timedelta()), client.prune()]

    assert await asyncio.to_thread(use) == [0, 1, 0]


async def test_what_cannot_be_meant_is_refused(opened: Callable[..., Any]) -> None:
    app = await opened(note)

    for options in (
        {"older_than": 7}, {"limit": 0}, {"status": "running"}, {"status": "done"}, {"status": []}, {"progress": 1},
        {"older": DAY},
    ):  # fmt: skip
        with pytest.raises(ConfigurationError):
            await app.prune(note, **options)
    with pytest.raises(UnknownJobType):
        await app.prune("nowhere")
    async with app.transaction():
        with pytest.raises(TransactionError):
            await app.prune()
    with pytest.raises(ConfigurationError):
        Retention(completed=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        Onward("memory://", jobs=[], retention=DAY)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="no chain begins"):

        @job("inner", internal=True, retention=Retention())
        async def inner(attempt: Attempt[int]) -> int:
            return 1


async def test_a_pruned_chain_no_longer_counts_as_a_duplicate(running: Callable[..., Any]) -> None:
    app = await running(note)
    once = Deduplication("once", scope="any")
    first = await app.start(note, 1, deduplication=once)
    await first.wait(timeout=SOON)
    assert (await app.start(note, 1, deduplication=once)).duplicate

    assert await app.prune(note, older_than=timedelta()) == 1

    assert not (await app.start(note, 1, deduplication=once)).duplicate


async def test_pruning_in_a_transaction_is_refused_with_what_to_do(opened: Any) -> None:
    app: Onward = await opened(note)
    async with app.transaction():
        with pytest.raises(TransactionOpen, match=r"prune\(\) while .* is open here: call it after the block"):
            await app.prune(note)
