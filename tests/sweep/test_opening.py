"""Opening and closing an app, cancelled at every wait: nothing is left, and it can be opened again.

As for operations, `make test` tries six in a hundred of the waits, always the same.
"""

import asyncio
import gc
import os
import secrets
import sys
import threading
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from onward import Attempt, Onward, job
from sweep.sweeping import SEED, SHARE

pytestmark = pytest.mark.timeout(900)
KINDS = ["asyncpg", "psycopg", "sqlalchemy asyncpg", "sqlalchemy psycopg", "sqlite", "sqlalchemy aiosqlite"]
_SOON = 8.0
ONLY = os.environ.get("ONWARD_SWEEP_ONLY", "")


@job("in a thread")
def in_thread(attempt: Attempt[int]) -> int:
    return attempt.input


class CancelledAt(Coroutine[Any, Any, Any]):
    """A coroutine whose task is cancelled at its n-th wait: at once, or when what it waits for is there."""

    def __init__(self, inner: Any, nth: int, *, answered: bool) -> None:
        self._inner, self._nth, self._answered = inner, nth, answered
        self.waits = 0
        self.task: asyncio.Task[Any] | None = None

    def send(self, value: Any) -> Any:
        return self._pass(self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        return self._pass(self._inner.throw(*error))

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Any:
        return (yield from self._inner.__await__())

    def _pass(self, waits_for: Any) -> Any:
        self.waits += 1
        if self.waits == self._nth:
            assert self.task is not None
            task = self.task
            if self._answered and isinstance(waits_for, asyncio.Future):
                waits_for.add_done_callback(lambda _: task.cancel())
            else:
                task.cancel()
        return waits_for


async def cancelled_at(work: Any, nth: int, *, answered: bool = False) -> int:
    """Do it, cancelled at this wait; how often it has waited."""
    stepped = CancelledAt(work, nth, answered=answered)
    stepped.task = asyncio.Task(stepped, loop=asyncio.get_running_loop())
    await asyncio.wait([stepped.task], timeout=60)
    assert stepped.task.done(), "it hangs"
    if not stepped.task.cancelled():
        stepped.task.result()
    return stepped.waits


class Ground:
    """A database, and what is left in it or in the process."""

    def __init__(self, kind: str, dsn: Callable[[], str], folder: Path) -> None:
        library, _, client = kind.rpartition(" ")
        self.is_file = "sqlite" in client
        self.schema = f"opening_{secrets.token_hex(4)}"
        if self.is_file:
            driver = "" if client == "sqlite" else f"+{client}"
            self.address = f"sqlite{driver}:///{folder}/jobs.db"
        else:
            self._admin = psycopg.connect(dsn(), autocommit=True)
            self.address = dsn().replace("://", f"+{client}://", 1)
        self._has_engine = library == "sqlalchemy"
        self._known = set(threading.enumerate())

    def target(self) -> Any:
        return create_async_engine(self.address) if self._has_engine else self.address

    def left(self) -> list[str]:
        found = [
            f"thread {thread.name}"
            for thread in threading.enumerate()
            if thread not in self._known and not thread.name.startswith("asyncio_")
        ]
        if not self.is_file:
            sql = (
                "SELECT application_name, state, left(query, 60) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            found += [f"session {row}" for row in self._admin.execute(sql).fetchall()]
        return found

    def close(self) -> None:
        if not self.is_file:
            self._admin.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE'.encode())
            self._admin.close()


@pytest.fixture(scope="module", params=KINDS)
def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    made = Ground(request.param, lambda: request.getfixturevalue("postgres_dsn"), tmp_path_factory.mktemp("opening"))
    yield made
    made.close()


async def trial(ground: Ground, what: str, nth: int, *, answered: bool) -> tuple[int, list[str]]:
    """Cancelled once, looked at, then used as if nothing had been; how many waits there were, and what is wrong."""
    target = ground.target()
    app = Onward(target, jobs=[in_thread], schema=ground.schema, migrate=True, observers=[])
    tasks = asyncio.all_tasks()
    if what == "open":
        waits = await cancelled_at(app.open(), nth, answered=answered)
    else:
        await app.open()
        await app.start(in_thread, 1)
        waits = await cancelled_at(app.close(), nth, answered=answered)
    await app.close()
    if hasattr(target, "dispose"):
        await target.dispose()
    problems = await soon_nothing(lambda: ground.left() + [f"task {t!r}"[:150] for t in asyncio.all_tasks() - tasks])
    async with app:
        await app.start(in_thread, 1)
    if hasattr(target, "dispose"):
        await target.dispose()
    return waits, problems


async def soon_nothing(look: Callable[[], list[str]]) -> list[str]:
    deadline = time.monotonic() + _SOON
    while (found := look()) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return found


def is_chosen(point: str) -> bool:
    return ONLY in point if ONLY else zlib.crc32(f"{SEED}/{point}".encode()) % 1000 < SHARE * 1000


@pytest.mark.parametrize("what", ["open", "close"])
def test_an_app_cancelled_while_it_opens_or_closes_leaves_nothing(
    ground: Ground, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    never = 1_000_000
    asyncio.run(trial(ground, what, never, answered=False))
    waits, problems = asyncio.run(trial(ground, what, never, answered=False))
    assert not problems
    tried = 0
    gc.disable()  # what is only found by the collector is there until it comes
    try:
        for nth in range(1, waits + 1):
            for answered in (False, True):
                point = f"{what} cancelled at wait {nth} of {waits}{' when answered' if answered else ''}"
                if is_chosen(point):
                    tried += 1
                    found = asyncio.run(trial(ground, what, nth, answered=answered))[1]
                    problems += [f"{point}: {problem}" for problem in found]
                    gc.collect()
    finally:
        gc.enable()
    with capsys.disabled():
        sys.stderr.write(
            f"\n  {what}: {2 * waits} points, {tried} tried (seed {SEED})\n" + "".join(f"  {p}\n" for p in problems)
        )
    assert not problems
