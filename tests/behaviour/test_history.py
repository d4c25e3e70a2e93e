"""What is pruned is moved to the history where retention says so, and looked up there; on Postgres."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import httpx
import psycopg
import pytest

from browsing import HERE, text_of
from onward import Attempt, FailedJob, Next, Onward, Permanent, Retention, job, new_id
from onward.crypto import Encryption, Secret
from onward.dashboard import Dashboard
from onward.errors import ChainFailed, ChainNotFound, ConfigurationError
from onward.lifecycle.pruning import kept_by
from onward.observe import events
from onward.worker.chores import Chores
from onward.worker.pruning import Pruning
from support import SOON, ClockOf, Recorder

PAGE = (Path(__file__).parents[2] / "docs/how-to/retention.md").read_text()
DAY = timedelta(days=1)
YEAR = Retention(completed=7 * DAY, failed=30 * DAY, history=365 * DAY)


@job("note.keep", internal=True)
async def keep(attempt: Attempt[int]) -> int:
    return attempt.input * 2


@job("note", continues_to=[keep])
async def note(attempt: Attempt[int]) -> Next[int]:
    if attempt.input < 0:
        raise Permanent("negative")
    return attempt.continue_with(keep, attempt.input + 1)


@job("probe", retention=Retention(completed=DAY, failed=DAY))
async def probe(attempt: Attempt[int]) -> int:
    return attempt.input


@job("login")
async def login(attempt: Attempt[dict[str, Annotated[str, Secret]]]) -> str:
    return "in"


pytestmark = pytest.mark.parametrize("target", ["postgres"], indirect=True)


def later(app: Onward, by: timedelta) -> None:
    app.state.clock = ClockOf(lambda: datetime.now(UTC) + by)


def prune_at_once(app: Onward) -> None:
    """As a process that has just begun, and looks at once."""
    pruning = Pruning(app.store, lambda: kept_by(app.registry), first_after=(0.0, 0.0))
    app._chores = Chores(app.store, [pruning])


def when_dropped(app: Onward) -> asyncio.Event:
    dropped, loop, history = asyncio.Event(), asyncio.get_running_loop(), app.state.history
    assert history is not None
    drop = history.drop

    def seen(month: datetime | None) -> datetime | None:
        loop.call_soon_threadsafe(dropped.set)
        return month

    history.drop = lambda: drop().then(seen)  # type: ignore[method-assign]
    return dropped


async def done(app: Onward, kind: Any, input: Any) -> Any:
    chain = await app.start(kind, input)
    await chain.wait(timeout=SOON)
    return chain


def by_hand(app: Onward, target: str, sql: str) -> list[Any]:
    state: Any = app.state
    with psycopg.connect(target, autocommit=True) as connection:
        cursor = connection.execute(sql.replace("onward.", f'"{state.schema}".').encode())
        return cursor.fetchall() if cursor.description else []


def parts(app: Onward, target: str) -> list[str]:
    found = by_hand(app, target, "SELECT relname FROM pg_class WHERE oid IN (SELECT inhrelid FROM pg_inherits "
                    "WHERE inhparent = 'onward.history'::regclass) ORDER BY 1")  # fmt: skip
    return [name for (name,) in found]


async def test_workers_move_what_they_prune_and_drop_what_nobody_wants_any_more(
    make_app: Callable[..., Onward], recorder: Recorder, target: str
) -> None:
    app = make_app(note, keep, probe, retention=YEAR)
    async with app:
        async with app.worker():
            good, gone = await done(app, note, 1), await done(app, probe, 1)
            bad = await app.start(note, -1)
            with pytest.raises(ChainFailed):
                await bad.wait(timeout=SOON)
        stored = {chain.id: chain async for chain in app.chains()}

        later(app, 31 * DAY)
        prune_at_once(app)
        async with app.worker():
            while sum(event.completed + event.failed for event in recorder.of(events.ChainsPruned)) < 3:
                await recorder.next(events.ChainsPruned, count=len(recorder.of(events.ChainsPruned)) + 1)

        assert sum(event.moved for event in recorder.of(events.ChainsPruned)) == 2  # that of `probe` was deleted
        assert [chain async for chain in app.chains()] == []
        moved = [chain async for chain in app.history(limit=1)]
        assert moved == [stored[bad.id], stored[good.id]]
        assert [(job.type_name, job.input) for job in await app.history_of(good.id)] == [("note", 1), ("note.keep", 2)]
        assert await app.history_of(gone.id) == []
        with pytest.raises(ChainNotFound):
            await app.retry(bad)
        assert len(parts(app, target)) == 1

        later(app, 31 * DAY + 366 * DAY + 31 * DAY)
        prune_at_once(app)
        dropped = when_dropped(app)
        async with app.worker():
            await asyncio.wait_for(dropped.wait(), SOON.total_seconds())
        assert parts(app, target) == []

        assert [chain async for chain in app.history()] == []


async def test_pruning_now_moves_and_pages_are_filtered(running: Callable[..., Any]) -> None:
    app = await running(note, keep, probe, retention=YEAR)
    chains = [await done(app, note, n) for n in range(3)]
    bad = await app.start(note, -1)
    with pytest.raises(ChainFailed):
        await bad.wait(timeout=SOON)

    assert await app.prune(older_than=timedelta()) == 4

    ids = [chain.id for chain in reversed(chains)]
    page = await app.history(types=[note], status="completed", limit=2)
    rest = await app.history(types=[note], status="completed", limit=2, after=page.next)
    assert [chain.id for chain in (*page, *rest)] == ids
    failed = await app.history(status=["failed"])
    assert [(chain.id, chain.current.last_error.message) for chain in failed if chain.current.last_error] == [
        (bad.id, "negative")
    ]
    assert isinstance(failed.items[0].current, FailedJob)
    assert [chain.id for chain in await app.history(chains=[chains[1], new_id()])] == [chains[1].id]
    assert list(await app.history(types=["probe"])) == []
    middle = page.items[0].ended_at
    assert [chain.id for chain in await app.history(ended_before=middle, status="completed")] == ids[1:]
    assert [chain.id for chain in await app.history(ended_from=middle, status="completed")] == ids[:1]

    def use() -> tuple[list[Any], int, int]:
        with app.sync as client:
            everything = [chain.id for chain in client.all_history(limit=1)]
            return everything, len(client.history(limit=3)), len(client.history_of(ids[0]))

    assert await asyncio.to_thread(use) == ([bad.id, *ids], 3, 2)
    for options in ({"status": "running"}, {"status": "done"}, {"types": "note"}, {"limit": 0}, {"ended": middle}):
        with pytest.raises(ConfigurationError):
            await app.history(**options)


async def test_what_is_too_old_for_the_history_is_deleted_as_it_was_asked_for(running: Callable[..., Any]) -> None:
    app = await running(note, keep, retention=YEAR)
    old = await done(app, note, 1)
    later(app, 400 * DAY)

    assert await app.prune(older_than=380 * DAY) == 1

    assert await app.history_of(old.id) == []


async def test_a_pruning_that_is_cancelled_at_any_moment_leaves_every_chain_whole_in_one_place(
    running: Callable[..., Any],
) -> None:
    app = await running(note, keep, retention=YEAR)
    chains = [await app.start(note, n) for n in range(60)]
    for chain in chains:
        await chain.wait(timeout=SOON)

    for milliseconds in range(10):
        with suppress(TimeoutError):
            async with asyncio.timeout(milliseconds / 1000):
                await app.prune(older_than=timedelta(), limit=len(await app.history()) + 5)

        left = {found.id: 2 async for found in app.chains()}
        moved = {found.id: len(await app.history_of(found.id)) async for found in app.history()}
        assert len(await app.jobs(limit=1000)) == 2 * len(left)
        assert left | moved == {chain.id: 2 for chain in chains}
        assert len(left) + len(moved) == len(chains)


async def test_secrets_and_encrypted_payloads_stay_so(running: Callable[..., Any], target: str) -> None:
    sealed = Encryption({"k": Encryption.new_key()}, current="k")
    app = await running(login, note, keep, retention=YEAR, encryption=sealed)
    mine, other = await done(app, login, {"password": "hunter2"}), await done(app, note, 7)
    stored = [chain async for chain in app.chains()]

    assert await app.prune(older_than=timedelta()) == 2

    assert [chain async for chain in app.history()] == stored
    assert "hunter2" not in str(await app.history_of(mine.id))
    assert (await app.history_of(other.id))[1].input == 8
    raw = by_hand(app, target, "SELECT input::text, output::text FROM onward.history")
    assert len(raw) == 3
    assert not [text for row in raw for text in row if text and ("hunter2" in text or text == "8")]


async def test_rows_that_cannot_be_read_are_moved_beside_others_and_shown(
    running: Callable[..., Any], target: str
) -> None:
    app = await running(note, keep, retention=YEAR)
    chains = [await done(app, note, n) for n in range(4)]
    odd, wrong, ancient, sound = chains
    by_hand(app, target, f"UPDATE onward.job SET created_at = '-infinity', errors = '7' WHERE chain_id = '{odd.id}'")
    by_hand(app, target, f"UPDATE onward.job SET status = 'odd', meta = '[]' WHERE id = '{wrong.id}'")
    by_hand(app, target, f"UPDATE onward.job SET chain_ended_at = '-infinity' WHERE id = '{ancient.id}'")
    before = {chain.id: chain async for chain in app.chains()}

    assert await app.prune(older_than=timedelta()) == 4

    moved = {chain.id: chain async for chain in app.history()}
    assert moved == {chain.id: before[chain.id] for chain in (odd, wrong, sound)}  # the third ended too long ago
    assert moved[odd.id].current.problem is not None
    assert (await app.history_of(wrong.id))[0].problem is not None


async def test_parts_that_are_missing_or_in_the_way_stop_nothing(running: Callable[..., Any], target: str) -> None:
    app = await running(note, keep, retention=YEAR)
    first = await done(app, note, 1)
    await app.prune(older_than=timedelta())
    (part,) = parts(app, target)
    odd = "INSERT INTO onward.history_part VALUES ('infinity', 'infinity'), ('2020-01-02', '2030-01-01')"
    by_hand(app, target, odd)

    by_hand(app, target, f"DROP TABLE onward.{part}")
    second = await done(app, note, 2)
    assert await app.prune(older_than=timedelta()) == 1
    by_hand(app, target, f"ALTER TABLE onward.history DETACH PARTITION onward.{part}")
    third = await done(app, note, 3)
    assert await app.prune(older_than=timedelta()) == 1

    assert parts(app, target) == [part]
    assert [chain.id for chain in await app.history()] == [third.id, second.id]
    assert await app.history_of(first.id) == []


async def test_a_part_that_was_detached_is_not_dropped(running: Callable[..., Any], target: str) -> None:
    app = await running(note, keep, retention=YEAR)
    await done(app, note, 1)
    await app.prune(older_than=timedelta())
    (part,) = parts(app, target)
    by_hand(app, target, f"ALTER TABLE onward.history DETACH PARTITION onward.{part}")
    later(app, 1000 * DAY)

    async with app.driver.connection() as connection:
        assert await connection.run(app.state.history.drop()) is not None

    assert len(by_hand(app, target, f"SELECT 1 FROM onward.{part}")) == 2
    assert by_hand(app, target, "SELECT 1 FROM onward.history_part") == []


async def test_a_part_that_cannot_be_dropped_keeps_nothing_from_being_pruned(
    make_app: Callable[..., Onward], recorder: Recorder, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(note, keep, retention=YEAR)
    async with app:
        async with app.worker():
            await done(app, note, 1)
        by_hand(app, target, "INSERT INTO onward.history_part VALUES ('2020-01-01 00:00+00', '2021-01-01')")
        by_hand(app, target, "SELECT onward.make_history_parts()")
        by_hand(app, target, "CREATE VIEW onward.report AS SELECT id FROM onward.history_2020_01")
        later(app, 8 * DAY)
        prune_at_once(app)
        async with app.worker():
            await recorder.next(events.ChainsPruned)

        assert len(await app.history()) == 1
        assert "history_2020_01" in parts(app, target)
    (told,) = [record for record in caplog.records if "could not drop" in record.message]
    assert "report depends on table" in str(told.exc_info and told.exc_info[1])


async def test_what_the_page_says_to_do_by_hand_can_be_done(running: Callable[..., Any], target: str) -> None:
    app = await running(note, keep, retention=YEAR)
    by_hand(
        app,
        target,
        "INSERT INTO onward.history_part VALUES ('2025-01-01 00:00+00', now()), ('2025-02-01 00:00+00', now())",
    )
    by_hand(app, target, "SELECT onward.make_history_parts()")
    lines = [line for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]

    for line in lines:
        by_hand(app, target, line)

    assert len(lines) == 4
    assert parts(app, target) == []
    kept = by_hand(
        app, target, "SELECT (kept_until AT TIME ZONE 'UTC')::date::text FROM onward.history_part ORDER BY 1"
    )
    assert kept == [("2027-02-01",), ("2027-03-01",)]


async def test_workers_from_before_the_history_go_on_and_delete(running: Callable[..., Any], target: str) -> None:
    app = await running(note, keep, retention=YEAR)
    chain = await done(app, note, 1)
    prune = "onward.prune('{note}', '{0}', '{0}', '00000000-0000-0000-0000-000000000000', NULL, 10, 10, now())"

    assert by_hand(app, target, f"SELECT completed, jobs FROM {prune}") == [(1, 2)]

    assert (await app.find_chain(chain.id), list(await app.history())) == (None, [])


async def test_the_tables_are_as_migrations_make_them_whatever_parts_there_are(
    running: Callable[..., Any], target: str
) -> None:
    app = await running(note, keep, retention=YEAR)
    await done(app, note, 1)
    await app.prune(older_than=timedelta())

    async with app.driver.connection() as connection:
        found = await connection.run(app.state.diagnose(most=1000, late=60.0))

    assert (list(found.drift), list(found.lacking), dict(found.unseen)) == ([], [], {})
    assert parts(app, target)[0] in [table.name for table in found.tables]


async def test_the_history_has_every_column_of_a_job(opened: Callable[..., Any], target: str) -> None:
    app = await opened(note, keep)
    columns = (
        "SELECT column_name, data_type, collation_name FROM information_schema.columns "
        "WHERE table_schema || '.' = replace('onward.', '\"', '') AND table_name = '{}' ORDER BY 1"
    )

    of_jobs, of_history = [by_hand(app, target, columns.format(table)) for table in ("job", "history")]
    copied = app.state.sql._read("fragments/history_columns").replace("\n", " ")

    assert len(of_jobs) > 30
    assert of_history == of_jobs  # or a migration has forgotten one of the two
    assert sorted([*copied.replace(",", " ").split(), "chain_ended_at"]) == [name for name, *_ in of_jobs]


@pytest.mark.parametrize("wrong", [{"history": 7}, {"history": 3 * DAY}, {"history": 7 * DAY, "failed": None}])
async def test_a_history_that_would_keep_nothing_is_refused(target: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="history"):
        Retention(**wrong)


async def test_a_file_has_no_history_and_says_so(target: str) -> None:
    with pytest.raises(ConfigurationError, match=r"of note: a SQLite file has none.*history=None"):
        Onward("memory://", jobs=[note, keep], retention=YEAR)
    app = Onward("memory://", jobs=[note, keep])
    async with app:
        with pytest.raises(ConfigurationError, match="there is no history: a SQLite file has none"):
            await app.history()
    with pytest.raises(ConfigurationError, match="of ledger"):

        @job("ledger", retention=YEAR)
        async def ledger(attempt: Attempt[int]) -> None: ...

        app.register(ledger)


async def test_the_page_of_a_type_says_how_long_its_history_is_kept(make_app: Callable[..., Onward]) -> None:
    app = make_app(note, keep, probe, retention=YEAR)
    async with app:
        browser = httpx.AsyncClient(transport=httpx.ASGITransport(Dashboard(app)), base_url=HERE)
        async with browser:
            moved, deleted = [text_of((await browser.get(f"/types/{name}")).text) for name in ("note", "probe")]

    assert "Kept when failed 30d" in moved
    assert "Then kept in the history 365d from the end of a chain on" in moved
    assert "in the history" not in deleted
