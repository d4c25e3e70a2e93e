"""Connections of our own pool go from handler to handler: nothing of the one reaches the next."""

import asyncio
from contextlib import suppress
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from onward import Attempt, Next, Onward, job
from onward.observe.events import AlreadyCompleted
from onward.state.command import Command
from support import SOON, Recorder


@pytest.fixture(params=["asyncpg", "psycopg"])
def target(request: pytest.FixtureRequest, postgres_dsn: str) -> str:
    return postgres_dsn.replace("postgresql://", f"postgresql+{request.param}://")


@job("echo")
async def echo(attempt: Attempt[str]) -> str:
    return attempt.input


SETTING = "SELECT current_setting('statement_timeout')"


@pytest.mark.parametrize(
    "change",
    [
        "SET statement_timeout = '77s'",
        "SELECT set_config('statement_timeout', '77s', false)",
        "WITH changed AS (SELECT set_config('statement_timeout', '77s', false)) SELECT 1 FROM changed",
    ],
)
@pytest.mark.parametrize("ends", ["completed", "rolled back"])
async def test_what_a_handler_sets_is_gone_for_the_next(running: Any, change: str, ends: str) -> None:
    """With one connection and several who wait for it, it is handed on as it is, and reset by whoever gets it."""
    seen: list[str] = []

    @job("sets", max_attempts=1)
    async def sets(attempt: Attempt[int]) -> None:
        async with attempt.complete() as tx:
            seen.append(await tx.fetchval(SETTING))
            await tx.fetch(change)
            if ends == "rolled back":
                raise ValueError

    app: Onward = await running(sets, pool_size=1)
    async with app.transaction() as tx:
        before = await tx.fetchval(SETTING)
    chains = await app.start_many([sets.with_input(n) for n in range(8)])
    for chain in chains:
        async with asyncio.timeout(SOON.total_seconds()):
            while (await app.find_chain(chain.id)).status not in ("completed", "failed"):  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
    async with app.transaction() as tx:
        after = await tx.fetchval(SETTING)

    assert (seen, after) == ([before] * 8, before)


async def test_a_lock_of_the_session_does_not_outlast_its_transaction(running: Any, postgres_dsn: str) -> None:
    @job("locks")
    async def locks(attempt: Attempt[int]) -> None:
        async with attempt.complete() as tx:
            await tx.fetch("SELECT pg_advisory_lock(:key)", key=7_036_874)

    app: Onward = await running(locks)
    await (await app.start(locks, 1)).wait(timeout=SOON)

    other = await asyncpg.connect(postgres_dsn)
    async with asyncio.timeout(SOON.total_seconds()):
        await other.execute("SELECT pg_advisory_lock(7036874)")
    await other.close()


@pytest.mark.parametrize("target", ["asyncpg"], indirect=True)  # psycopg's pool hands out the connection itself
async def test_a_connection_that_somebody_kept_is_of_no_use_afterwards(running: Any) -> None:
    kept: list[Any] = []

    @job("keeps")
    async def keeps(attempt: Attempt[int]) -> None:
        async with attempt.complete() as tx:
            kept.append(tx.connection)

    app: Onward = await running(keeps, pool_size=1)
    for chain in await app.start_many([keeps.with_input(n) for n in range(4)]):
        await chain.wait(timeout=SOON)

    for raw in kept:
        with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
            await raw.execute("SELECT 1")


async def test_outputs_and_inputs_are_quoted_whatever_they_contain(running: Any) -> None:
    """A commit that settles is one message, in which values are spelled out."""

    @job("last", internal=True)
    async def last(attempt: Attempt[str]) -> str:
        async with attempt.complete():
            return attempt.input

    @job("first", continues_to=[last])
    async def first(attempt: Attempt[str]) -> Next[str]:
        async with attempt.complete():
            return attempt.continue_with(last, attempt.input)

    nasty = "'); DROP TABLE job; -- \\' \\\\ $$ %s :name E'\\x41' \" ü 漢 \U0001f600 \n\t"
    app: Onward = await running(first, last)

    assert await (await app.start(first, nasty)).wait(timeout=SOON) == nasty


async def test_the_same_under_old_settings_for_strings(running: Any, postgres_dsn: str) -> None:
    @job("old")
    async def old(attempt: Attempt[str]) -> str:
        async with attempt.complete() as tx:
            await tx.execute("SET LOCAL standard_conforming_strings = off")
            return attempt.input

    app: Onward = await running(old)

    assert await (await app.start(old, "a\\'b")).wait(timeout=SOON) == "a\\'b"


@job("waits", blocked_by=["parent"])
async def waits(attempt: Attempt[str]) -> str:
    return "unblocked"


async def test_a_chain_that_waits_for_the_one_that_starts_it_is_unblocked_with_it(running: Any) -> None:
    @job("parent")
    async def parent(attempt: Attempt[str]) -> str:
        async with attempt.complete() as tx:
            await tx.fetch("SELECT 1")
            me: Any = app.chain(parent, attempt.chain_id)
            child = await app.start(waits, "x", blockers=[me], tx=tx)
            return str(child.id)

    app: Onward = await running(parent, waits)
    child = await (await app.start(parent, "x")).wait(timeout=SOON)

    assert await app.chain(waits, UUID(child)).wait(timeout=SOON) == "unblocked"


async def test_an_attempt_whose_job_was_deleted_by_its_own_handler_commits_nothing(
    running: Any, recorder: Recorder
) -> None:
    @job("deletes")
    async def deletes(attempt: Attempt[str]) -> None:
        async with attempt.complete() as tx:
            schema = app.state.schema
            await tx.execute(f'CREATE TABLE "{schema}".traces (entry text)')
            await tx.execute(f'DELETE FROM "{schema}".job WHERE id = :id', id=attempt.job_id)

    app: Onward = await running(deletes)
    chain = await app.start(deletes, "x")
    await recorder.next(AlreadyCompleted)

    async with app.transaction() as tx:
        assert await tx.fetchval("SELECT to_regclass(:name)::text", name=f'"{app.state.schema}".traces') is None
    assert await app.find_chain(chain.id) is not None


@pytest.mark.parametrize("client", ["postgresql", "postgresql+psycopg"])
async def test_a_lone_start_sends_its_hint_with_its_commit(opened: Any, postgres_dsn: str, client: str) -> None:
    app: Onward = await opened(echo, target=postgres_dsn.replace("postgresql", client, 1))
    heard: asyncio.Queue[str] = asyncio.Queue()
    listening = await asyncpg.connect(postgres_dsn)
    channel = app.notify._statement.channel  # type: ignore[attr-defined]
    await listening.add_listener(channel, lambda *arguments: heard.put_nowait(str(arguments[3])))
    await asyncio.sleep(0.01)

    await app.start(echo, "x")
    async with asyncio.timeout(SOON.total_seconds()):
        payload = await heard.get()

    assert "s1:echo" in payload
    assert not app.notify.is_up  # no connection was made for it
    await listening.close()


async def test_a_connection_that_is_lost_in_a_phase_is_replaced(running: Any) -> None:
    """Also one that would have had to be reset."""

    @job("cut")
    async def cut(attempt: Attempt[int]) -> int:
        async with attempt.complete() as tx:
            await tx.fetch("SELECT set_config('a.b', 'c', false)")
            if attempt.number == 1:
                with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                    await tx.fetch("SELECT pg_terminate_backend(pg_backend_pid())")
            return attempt.number

    app: Onward = await running(cut, pool_size=1)
    chains = await app.start_many([cut.with_input(n) for n in range(3)])

    assert [await chain.wait(timeout=SOON) for chain in chains] == [2, 2, 2]


@pytest.mark.parametrize("client", ["postgresql", "postgresql+psycopg"])
async def test_a_transaction_whose_first_statement_fails_has_not_begun(
    opened: Any, postgres_dsn: str, client: str
) -> None:
    app: Onward = await opened(echo, target=postgres_dsn.replace("postgresql", client, 1), pool_size=1)

    async with app.driver.connection() as link:
        with pytest.raises(Exception, match="division by zero"):
            await link.run(Command("SELECT 1 / :zero::integer", {"zero": 0}, len, "count"), begin=True)

        assert not link.in_transaction
    await app.start(echo, "the connection is as good as before")
