"""However many look, the database is asked at a bounded rate, and answers in time or not at all."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from starlette.datastructures import QueryParams

from browsing import Browser, streamed, text_of
from onward import JobType, Onward, new_id
from onward.dashboard import gate, reading
from onward.dashboard.audit import Entry
from onward.dashboard.page import Ask, Page
from onward.dashboard.pages.registry import PAGES
from onward.dashboard.reading import Readings, key_of
from onward.dashboard.refusal import Away
from onward.errors import DatabaseError
from onward.state.command import Command
from proxy import proxied

charge = JobType("orders.charge", input=dict[str, int], output=dict[str, str])


def ask(**query: str) -> Ask:
    return Ask(app=Onward("memory://", jobs=[]), path={}, query=QueryParams(query))


def page(look: Any, **options: Any) -> Page:
    return Page(path="/x", title="X", template="x.html", look=look, **options)


async def test_who_asks_the_same_at_the_same_time_gets_one_reading() -> None:
    count = 0

    async def look(ask: Ask) -> dict[str, Any]:
        nonlocal count
        count += 1
        await asyncio.sleep(0)
        return {"count": count}

    readings, one = Readings(timeout=5), page(look)
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(readings.get(one, ask())) for _ in range(50)]
    assert {task.result().data["count"] for task in asked} == {1}

    readings.forget()
    assert (await readings.get(one, ask())).data["count"] == 2
    assert (await readings.get(one, ask(status="failed"))).data["count"] == 3
    assert (await readings.get(one, ask(), no_older_than=0)).data["count"] == 4


async def test_a_question_is_told_too_that_the_database_does_not_answer(
    opened: Callable[..., Any], serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await opened(charge)
    browser = await serve(app, timeout=timedelta(milliseconds=1))
    monkeypatch.setattr(reading, "_MORE", 0.0)
    monkeypatch.setattr(app, "find_chain", lambda id: asyncio.sleep(3600))

    async with asyncio.timeout(5):
        told = await browser.visit(f"/confirm/complete?chain={new_id()}", status=503)

    assert "did not answer within" in told


async def test_when_whoever_reads_is_gone_the_next_one_reads() -> None:
    reached, count = asyncio.Event(), 0

    async def look(ask: Ask) -> dict[str, Any]:
        nonlocal count
        count += 1
        reached.set()
        if count == 1:
            await asyncio.sleep(3600)
        return {}

    readings, one = Readings(timeout=3600), page(look)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(readings.get(one, ask()))
        await reached.wait()
        second = tasks.create_task(readings.get(one, ask()))
        await asyncio.sleep(0)
        first.cancel()

    assert second.result().refusal is None
    assert count == 2


async def test_what_takes_too_long_is_said_in_words_and_not_tried_at_once_again() -> None:
    count = 0

    async def look(ask: Ask) -> dict[str, Any]:
        nonlocal count
        count += 1
        await asyncio.sleep(3600)
        return {}

    readings, one = Readings(timeout=0.01), page(look)

    for _ in range(2):
        refusal = (await readings.get(one, ask())).refusal
        assert refusal is not None
        assert refusal.status == 503
        assert "did not answer within" in refusal.words
    assert count == 1


@pytest.mark.parametrize("client", ["postgresql", "postgresql+psycopg"])
async def test_a_database_that_stands_still_is_told_soon_and_with_what_was_read_before(
    postgres_dsn: str, serve: Callable[..., Any], client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take a dozen seconds to give a connection back on which no answer comes: nobody waits for that."""
    monkeypatch.setattr(reading, "_PULSE", 0.3)
    schema = f"t_{uuid4().hex[:12]}"
    async with (
        proxied(postgres_dsn) as (proxy, dsn),
        Onward(dsn.replace("postgresql", client), jobs=[charge], schema=schema, migrate=True, observers=[]) as app,
    ):
        browser: Browser = await serve(app, timeout=timedelta(milliseconds=500))
        chain = await app.start(charge, {"id": 1}, delay=timedelta(hours=1))
        before = await browser.visit("/chains")
        seconds = "As of " + text_of(before).partition("As of ")[2][: len("2026-11-17 00:00:00 UTC")]
        browser.dashboard._readings._slots[next(iter(browser.dashboard._readings._slots))].taken = 0.0

        proxy.freeze()
        async with asyncio.timeout(6):
            known = await browser.visit("/chains", status=503)
            unknown = text_of(await browser.visit("/workers", status=503))
        async with asyncio.timeout(6), streamed(browser.dashboard, "/jobs") as event:
            live = await event()

        proxy.thaw()
        async with asyncio.timeout(20):
            while (await browser.client.get("jobs")).status_code != 200:
                await asyncio.sleep(0.1)
        after = await browser.visit("/chains")

    assert "Not up to date. The database does not answer." in text_of(known)
    assert seconds in text_of(known)
    assert str(chain.id) in known
    assert "The database does not answer." in unknown
    assert "First noticed at" in unknown
    assert live["words"].startswith("The database does not answer.")
    assert live["since"] is not None
    assert "hidden" in after.partition('id="stale"')[2].partition(">")[0]


@pytest.mark.parametrize("client", ["postgresql", "postgresql+psycopg"])
async def test_what_is_asked_of_a_database_that_stands_still_is_answered_and_what_came_of_it_is_written_down(
    postgres_dsn: str, serve: Callable[..., Any], client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_PULSE", 0.3)
    monkeypatch.setattr(gate, "_PATIENCE", 0.3)
    schema, entries = f"t_{uuid4().hex[:12]}", list[Entry]()
    async with (
        proxied(postgres_dsn) as (proxy, dsn),
        Onward(dsn.replace("postgresql", client), jobs=[charge], schema=schema, migrate=True, observers=[]) as app,
    ):
        browser: Browser = await serve(app, timeout=timedelta(milliseconds=500), audit=entries.append)
        chain = await app.start(charge, {"id": 1}, delay=timedelta(hours=1))
        await browser.visit("/chains")

        proxy.freeze()
        async with asyncio.timeout(6):
            told = text_of(await browser.act("cancel", {"chain": str(chain.id)}, status=503))
        assert [entry.outcome for entry in entries] == ["asked"]
        proxy.thaw()
        async with asyncio.timeout(30):
            while len(entries) < 2:
                await asyncio.sleep(0.05)

        status = (await app.find_chain(chain.id)).status

    assert "The database does not answer." in told
    assert "it is not known whether this was done" in told
    assert entries[0].id in told
    assert (entries[1].id, entries[1].outcome, entries[1].words) == (entries[0].id, "done", "Cancelled 1 chain.")
    assert status == "failed"


async def test_what_takes_long_in_a_database_that_answers_is_waited_for(
    opened: Callable[..., Any], serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_PATIENCE", 0.01)
    app: Onward = await opened(charge)
    browser: Browser = await serve(app)
    chain, cancel = await app.start(charge, {"id": 1}, delay=timedelta(hours=1)), app.cancel

    async def slowly(*given: Any, **options: Any) -> Any:
        await asyncio.sleep(0.3)
        return await cancel(*given, **options)

    monkeypatch.setattr(app, "cancel", slowly)

    assert "Cancelled 1 chain." in text_of(await browser.act("cancel", {"chain": str(chain.id)}))


async def test_since_when_it_is_away_is_that_of_the_first_page_that_noticed() -> None:
    is_away = True

    async def look(ask: Ask) -> dict[str, Any]:
        if is_away:
            raise DatabaseError("the server is gone", doing="looking", fault="lost")
        return {}

    readings, one, other = Readings(timeout=5), page(look), page(look, needs="queues")
    noticed = [await readings.get(which, ask(), no_older_than=0) for which in (one, other, one)]
    is_away = False
    assert (await readings.get(one, ask(), no_older_than=0)).refusal is None
    is_away = True
    again = (await readings.get(one, ask(), no_older_than=0)).refusal

    assert len({one.refusal.since for one in noticed if isinstance(one.refusal, Away)}) == 1
    assert noticed[0].refusal is not None
    assert noticed[0].refusal.words == "The database does not answer. The server is gone."
    assert isinstance(again, Away)
    assert again.since > noticed[-1].at


async def test_what_nobody_asks_for_any_more_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_KEPT", 0.2)

    async def look(ask: Ask) -> dict[str, Any]:
        return {}

    readings, one = Readings(timeout=5), page(look)
    async with asyncio.timeout(10):
        for name in ("gone", "kept"):
            await readings.get(one, ask(q=name))
        while len(readings._slots) == 2:
            await asyncio.sleep(0.01)
            await readings.get(one, ask(q="kept"))
        assert list(readings._slots) == [key_of(one, ask(q="kept"))], "somebody looks at it"
        while readings._slots:
            await asyncio.sleep(0.01)
        await readings.get(one, ask(q="new"))
        while readings._slots:
            await asyncio.sleep(0.01)


def test_fifty_different_pages_are_read_less_often_than_one() -> None:
    async def look(ask: Ask) -> dict[str, Any]:
        return {}

    readings, one = Readings(timeout=1), page(look, every=2.0, cost=8)
    with readings.watched(one, ask()):
        assert readings.pause(one) == 2.0
        with readings.watched(one, ask()):
            assert readings.pause(one) == 2.0
    held = [readings.watched(one, ask(n=str(n))) for n in range(50)]
    for each in held:
        each.__enter__()

    assert 50 * 8 / readings.pause(one) < 20
    for each in held:
        each.__exit__(None, None, None)
    assert readings.pause(one) == 2.0


def test_no_page_is_read_so_often_that_it_alone_costs_too_much() -> None:
    for one in PAGES:
        assert one.cost / one.every < 10, one.path


async def test_changes_arrive_as_parts_of_the_page(opened: Callable[..., Any], serve: Callable[..., Any]) -> None:
    app = await opened(charge)
    browser: Browser = await serve(app)
    dashboard = browser.dashboard
    one = next(page for page in PAGES if page.path == "/chains")
    quick = Page(path=one.path, title=one.title, template=one.template, look=one.look, every=0.01, cost=0)
    dashboard._pages = [(route, quick if page is one else page) for route, page in dashboard._pages]

    async with asyncio.timeout(20), streamed(dashboard, "/chains?status=pending") as event:
        parts = [await event()]
        assert "No chains match." in parts[0]["parts"]["live-rows"]
        chain = await app.start(charge, {"id": 1}, delay=timedelta(hours=1))
        while str(chain.id) not in parts[-1]["parts"].get("live-rows", ""):
            parts.append(await event())
        assert (await event())["parts"] == {}, "what has not changed is not sent"

    assert dashboard._streams == 0
    assert not dashboard._readings._watched


HOSTILE = (
    "status=lost", "newer=long", "older=9999999999999d", "after=7", "limit=0", "limit=9999999999", "root=x",
    "type=" + "x" * 10_000, "error=" + "x" * 5_000, "reason='; DROP TABLE", "limit=%F0%9D%9F%99",
    "&".join(f"type=t{n}" for n in range(200)), "error=%00", "error_type=%ED%A0%80", "type=%00", "error=%25%5F",
    "newer=1ms&older=0s", "input=%00", "type=%F0%9F%92%A3", "error=%ED%A0%80",
)  # fmt: skip


async def test_a_filter_that_makes_no_sense_is_refused_in_words(
    opened: Callable[..., Any], serve: Callable[..., Any]
) -> None:
    browser: Browser = await serve(await opened(charge))

    for query in HOSTILE:
        for path in ("jobs", "chains", "failed"):
            answer = await browser.client.get(f"{path}?{query}")
            assert answer.status_code in (200, 400), (path, query, answer.text)


async def test_nothing_is_found_in_words(opened: Callable[..., Any], serve: Callable[..., Any]) -> None:
    browser: Browser = await serve(await opened(charge))

    for path in ("/chains", "/jobs", "/failed", "/chains?error=%25%5F", f"/jobs?after={new_id()}"):
        await browser.visit(path)
    for path in ("/nowhere", "/chains/", "/jobs/x/y", "/static/../asgi.py", "/static/x", "/live?at=/nowhere", "/find"):
        await browser.visit(path, status=404)


async def test_a_statement_that_takes_too_long_is_cancelled_on_the_server(postgres_dsn: str) -> None:
    nobody = uuid4().hex
    active = (
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE :it AND pid <> pg_backend_pid()"
    )

    schema = f"t_{nobody[:12]}"
    async with Onward(postgres_dsn, jobs=[charge], schema=schema, migrate=True, observers=[]) as app:

        async def look(ask: Ask) -> dict[str, Any]:
            return await app.store.read(Command(f"SELECT pg_sleep(600) /* {nobody} */", {}, lambda rows: {}))

        refusal = (await Readings(timeout=0.3).get(page(look), ask())).refusal
        async with asyncio.timeout(20):
            while await app.store.read(Command(active, {"it": f"%pg_sleep%{nobody}%"}, lambda rows: rows[0][0])):
                await asyncio.sleep(0.01)

    assert refusal is not None
    assert "did not answer within 0.3 s" in refusal.words
