"""An app at module level lives longer than an event loop: it is closed with one and opened again in another."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from onward import Attempt, Onward, job
from onward.errors import ConfigurationError, DatabaseUnavailable
from onward.notify.nats import NatsNotify
from onward.notify.redis import RedisNotify
from onward.state.postgres.psycopg import SyncPsycopgDriver
from support import SOON

SEVERAL = 3
NEVER = timedelta(hours=1)


@job("double")
async def double(attempt: Attempt[int]) -> int:
    return attempt.input * 2


@job("in_thread")
def in_thread(attempt: Attempt[int]) -> int:
    return attempt.input * 2


async def work(app: Onward, *, guardian: Any = "thread") -> list[int]:
    """Open, start, run and close."""
    async with app, app.worker(poll=NEVER, guardian=guardian, lease=timedelta(seconds=1)):
        chains = [await app.start(kind, 2) for kind in (double, in_thread)]
        return [await chain.wait(timeout=SOON) for chain in chains]


async def only_start(app: Onward) -> None:
    async with app:
        await app.start(double, 1)


@pytest.fixture(params=["", "redis", "nats"])
def notify(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """How hints travel: as the database has it, or by a broker."""
    if not request.param:
        return lambda: None
    url: str = request.getfixturevalue(f"{request.param}_url")
    name = f"test_{secrets.token_hex(4)}"
    if request.param == "redis":
        return lambda: RedisNotify(url, channel=name)
    return lambda: NatsNotify(url, subject=name)


@pytest.mark.parametrize("guardian", ["thread", "process"])
def test_an_app_works_in_one_event_loop_after_another(
    make_app: Callable[..., Onward], notify: Any, guardian: str
) -> None:
    app = make_app(double, in_thread, observers=[], notify=notify())

    for _ in range(SEVERAL):
        assert asyncio.run(work(app, guardian=guardian)) == [4, 4]
        asyncio.run(only_start(app))


@pytest.mark.parametrize("address", ["memory://", "postgresql+psycopg", "sqlalchemy"])
def test_so_does_one_on_another_driver(address: str, postgres_dsn: str) -> None:
    target: Any = address
    if address == "postgresql+psycopg":
        target = postgres_dsn.replace("postgresql", address)
    elif address == "sqlalchemy":
        from sqlalchemy.pool import NullPool

        # What an engine's own pool keeps is bound to its loop: that is SQLAlchemy's to say.
        target = create_async_engine(postgres_dsn.replace("postgresql", "postgresql+asyncpg"), poolclass=NullPool)
    app = Onward(target, jobs=[double], schema=f"t_{secrets.token_hex(6)}", migrate=True, observers=[])

    async def run() -> int:
        async with app, app.worker(poll=NEVER):
            return await (await app.start(double, 2)).wait(timeout=SOON)

    assert [asyncio.run(run()) for _ in range(SEVERAL)] == [4, 4, 4]


def elsewhere(work: Coroutine[Any, Any, Any]) -> Any:
    """What comes of work in the event loop of another thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def test_an_app_says_that_it_was_opened_in_another_event_loop(make_app: Callable[..., Onward]) -> None:
    app = make_app(double)
    async with app:
        chain = await app.start(double, 2)

        async def use_transaction() -> None:
            async with app.transaction():
                pass

        async def complete() -> None:
            async with app.complete(chain):
                pass

        async def run_worker() -> None:
            async with app.worker():
                pass

        async def go_through() -> None:
            async for _ in app.jobs():
                pass

        calls = (
            *(lambda: app.start(double, 2), chain.wait, chain.get, lambda: app.cancel(chain), app.paused, app.close),
            *(use_transaction, complete, run_worker, go_through, lambda: app.find_job(chain.id)),
        )
        for call in calls:
            with pytest.raises(ConfigurationError, match="opened in another event loop"):
                await asyncio.to_thread(lambda call=call: elsewhere(call()))  # type: ignore[misc]

        async with app.worker():
            assert await chain.wait(timeout=SOON) == 4


async def test_an_app_that_two_open_at_once_is_opened_by_one(make_app: Callable[..., Onward]) -> None:
    app = make_app(double)
    opened = await asyncio.gather(app.open(), app.open(), return_exceptions=True)  # noqa: TID251

    refused = [error for error in opened if error is not None]
    assert [type(error) for error in refused] == [ConfigurationError]
    assert "being opened by another task or thread" in str(refused[0])
    async with app.worker():
        assert await (await app.start(double, 2)).wait(timeout=SOON) == 4
    await app.close()


def test_an_app_whose_event_loop_ended_before_it_was_closed_says_so() -> None:
    app = Onward("memory://", jobs=[double], observers=[])
    loop = asyncio.new_event_loop()
    loop.run_until_complete(app.open())
    for task in asyncio.all_tasks(loop):
        task.cancel()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
    loop.close()

    with pytest.raises(ConfigurationError, match="in an event loop that has ended"):
        asyncio.run(only_start(app))


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_an_app_that_finds_no_connection_for_its_threads_says_so_in_our_words_and_can_be_opened_later(
    make_app: Callable[..., Onward], monkeypatch: pytest.MonkeyPatch
) -> None:
    @job("in a thread")
    def in_a_thread(attempt: Attempt[int]) -> int:
        return attempt.input

    async def refuse(_: Any) -> None:
        raise psycopg.OperationalError("connection failed: FATAL:  sorry, too many clients already")

    app = make_app(in_a_thread)
    with monkeypatch.context() as patched:
        patched.setattr(SyncPsycopgDriver, "open", refuse)
        with pytest.raises(DatabaseUnavailable, match=r"open the app: .*too many clients"):
            await app.open()

    async with app, app.worker():
        assert await (await app.start(in_a_thread, 7)).wait(timeout=SOON) == 7
