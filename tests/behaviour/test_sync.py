"""`app.sync`: the client's calls without an event loop, and their meeting with a worker elsewhere."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from psycopg_pool import ConnectionPool
from sqlalchemy import create_engine

from onward import Attempt, Deduplication, JobStatus, JobType, Next, Onward, SyncOnward, job
from onward.errors import ChainNotFound, TransactionOpen
from onward.notify.contract import Hint
from onward.observe import events
from support import SOON, Recorder


@job("double")
async def double(attempt: Attempt[int]) -> int:
    return attempt.input * 2


@job("end", internal=True)
async def end(attempt: Attempt[int]) -> str:
    return f"end {attempt.input}"


@job("begin", continues_to=[end])
async def begin(attempt: Attempt[int]) -> Next[str]:
    return attempt.continue_with(end, attempt.input)


approve = JobType("approve", input=str, output=bool)


@pytest.fixture
def app(make_app: Any) -> Onward:
    made: Onward = make_app(double, begin, end, approve)
    return made


@pytest.fixture
def client(app: Onward) -> Iterator[SyncOnward]:
    with app.sync as client:
        yield client


def test_chains_are_started_in_a_transaction_or_not_at_all(client: SyncOnward) -> None:
    with client.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS remarks (text text)")
        tx.execute("INSERT INTO remarks VALUES (:text)", text="kept")
        kept = client.start(double, 1, tx=tx)
        with pytest.raises(ZeroDivisionError), tx.savepoint():
            undone = client.start(double, 2, tx=tx)
            raise ZeroDivisionError
        with pytest.raises(TransactionOpen):
            client.start(double, 3)
        assert tx.fetchrow("SELECT text FROM remarks")["text"] == "kept"

    assert client.find_chain(undone.id) is None
    assert kept.get().status is JobStatus.PENDING
    with pytest.raises(ChainNotFound):
        client.chain(double, undone.id).wait(timeout=SOON)


def test_everything_the_async_client_can_do(client: SyncOnward) -> None:
    chains = client.start_many([approve.with_input(str(n)) for n in range(3)])
    keyed = [client.start(approve, "k", deduplication=Deduplication("k")) for _ in range(2)]
    with client.complete(chains[0]) as completion:
        assert completion.input == "0"
        completion.done(True)
    client.cancel(chains[1])
    client.retry(chains[1])
    later = client.start(double, 1, delay=timedelta(hours=1))
    client.trigger(later)
    client.pause(double)
    paused = client.paused()
    client.resume(double)

    assert chains[0].wait(timeout=SOON) is True
    assert [chain.duplicate for chain in keyed] == [False, True]
    assert paused == ["double"]
    assert {chain.id for chain in client.chains(status="completed").items} == {chains[0].id}
    assert len(client.jobs(types=[approve]).items) == 4
    assert client.find_job(later.id) is not None
    assert client.delete(later) == 1
    assert list(client.blockers_of(chains[0].id)) == []
    assert client.blocked_by(chains[0]).items == []


def test_a_chain_completed_by_hand_goes_on_step_by_step(client: SyncOnward) -> None:
    chain = client.start(begin, 1)

    with client.complete(chain) as completion:
        completion.continue_with(end, 2)
        completion.done("by hand")

    assert chain.wait(timeout=SOON) == "by hand"


async def test_a_worker_elsewhere_notices_what_a_sync_client_starts(app: Onward, make_app: Any) -> None:
    def from_a_script() -> int:
        with make_app(double, begin, end, approve).sync as client:
            return client.start(double, 21).wait(timeout=SOON)

    async with app, app.worker(poll=timedelta(hours=1)):
        assert await asyncio.to_thread(from_a_script) == 42


_LOADED = """
import sys
from onward import Attempt, Onward, job

@job("greet")
async def greet(attempt: Attempt[str]) -> None: ...

@job("count")
def count(attempt: Attempt[str]) -> None: ...

Onward("postgresql://localhost/none", jobs=[greet])
before = "psycopg" in sys.modules
Onward("postgresql://localhost/none", jobs=[greet, count])
print(before, "psycopg" in sys.modules)
"""


def test_only_def_handlers_cost_a_second_library() -> None:
    program = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True)

    assert program.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
@pytest.mark.parametrize("kind", ["pool", "engine"])
def test_what_follows_a_commit_needs_no_second_connection_of_the_pool(
    kind: str, postgres_dsn: str, make_app: Any, recorder: Recorder
) -> None:
    """Else as many threads as the pool has connections would wait for each other."""
    with ExitStack() as stack:
        target: Any
        if kind == "pool":
            target = stack.enter_context(ConnectionPool(postgres_dsn, min_size=1, max_size=1, timeout=2.0))
        else:
            url = postgres_dsn.replace("postgresql://", "postgresql+psycopg://")
            target = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=2.0)
            stack.callback(target.dispose)
        client = stack.enter_context(make_app(approve, target=target).sync)

        with client.transaction() as tx:
            first = client.start(approve, "first", tx=tx)
        with client.complete(first) as completion:
            completion.done(True)

        assert first.get().status is JobStatus.COMPLETED
    assert recorder.of(events.ChainStarted)
    assert not recorder.of(events.NotifyError)


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_hints_leave_before_actions_after_a_commit_which_may_be_interrupted(
    make_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with make_app(approve).sync as client:
        sent: list[Hint] = []
        monkeypatch.setattr(client._store._announcer, "post", sent.extend)
        with pytest.raises(KeyboardInterrupt), client.transaction() as tx:
            client.start(approve, "paper", tx=tx)
            tx.after_commit(interrupt)

    assert [hint.key for hint in sent] == [approve.name]


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_an_action_after_a_commit_may_start_a_chain_where_the_pool_has_one_connection(make_app: Any) -> None:
    started: list[Any] = []

    def work() -> None:
        with client.transaction() as tx:
            client.start(approve, "first", tx=tx)
            tx.after_commit(lambda: started.append(client.start(approve, "second")))

    client: SyncOnward
    with make_app(approve, pool_size=1).sync as client:
        working = threading.Thread(target=work, daemon=True)  # it would wait for ever
        working.start()
        working.join(SOON.total_seconds())

    assert len(started) == 1
