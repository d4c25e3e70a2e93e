"""`app.health()`: what it says of an app on a real database, and of a database that is away or silent."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from onward import Attempt, JobType, Onward, job
from onward.operating import Health
from onward.state.statement import Statements
from proxy import proxied
from support import SOON

call = JobType("call", input=int, output=int)
"""Nobody here takes it, and nobody has to."""


@job("mail")
async def mail(attempt: Attempt[int]) -> int:
    return attempt.input


def levels(health: Health) -> dict[str, str]:
    return {finding.name: finding.level for finding in health.findings}


async def test_an_app_that_works_is_healthy_and_one_without_a_worker_is_not(running: Any, opened: Any) -> None:
    app = await opened(mail, call)
    await app.start(call, 1)
    assert levels(await app.health()) == {
        "database": "ok", "schema": "ok", "hints": "ok", "workers": "warning", "age": "ok",
    }  # fmt: skip

    await app.pause(mail)
    await app.start(mail, 1)
    other = await running(mail, call)
    healthy = await other.health(max_age=timedelta(hours=1), max_ages={"call": SOON})
    late = await other.health(max_ages={"call": timedelta(0)})

    assert healthy.healthy, healthy
    assert levels(healthy)["types"] == "ok"
    assert {name for name, level in levels(late).items() if level != "ok"} == {"age"}


async def test_jobs_that_no_worker_takes_are_an_error(make_app: Any) -> None:
    app = make_app(mail)
    async with app:
        await app.start(mail, 1)
        health = await app.health()
        assert (health.healthy, levels(health)["workers"]) == (False, "error")
    stranger = make_app(job("other")(_other))
    async with stranger, stranger.worker():
        health = await stranger.health()
        assert (health.healthy, levels(health)["workers"], levels(health)["types"]) == (False, "ok", "error")


async def _other(attempt: Attempt[int]) -> int:
    return attempt.input


async def test_an_app_without_tables_is_looked_at_and_makes_none(make_app: Any) -> None:
    app = make_app(mail)

    for _ in range(2):
        health = await app.health()
        assert {name: level for name, level in levels(health).items() if name != "hints"} == {
            "database": "ok", "schema": "error",
        }  # fmt: skip
        assert "onward migrate" in str(health.findings[1].advice)


async def test_a_look_at_an_app_that_is_just_being_opened_does_not_disturb_it(make_app: Any) -> None:
    app = make_app(mail)

    async with asyncio.TaskGroup() as tasks:
        looks = [tasks.create_task(app.health()) for _ in range(3)]
        tasks.create_task(app.open())

    assert {finding.level for look in looks for finding in look.result().findings[:1]} == {"ok"}
    async with app.worker():
        assert (await app.health()).healthy
    await app.close()


async def test_many_who_ask_at_once_cost_one_look(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = await opened(mail)
    looks: list[str] = []
    due_types = app.state.due_types
    monkeypatch.setattr(app.state, "due_types", lambda **asked: looks.append("") or due_types(**asked))

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(app.health()) for _ in range(100)]

    assert len(looks) == 1
    assert {task.result().at for task in asked} == {asked[0].result().at}


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_a_look_is_not_compiled_by_the_server(
    postgres_dsn: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a million jobs that takes a second and a half, of a statement that runs for a millisecond."""
    async with Onward(postgres_dsn.replace("://", f"+{library}://", 1), jobs=[mail], migrate=True) as app:
        told = "SELECT pg_catalog.current_setting('jit'), 1, 0.0::double precision, false"
        load = Statements._load
        monkeypatch.setattr(Statements, "_load", lambda *of: told if of[1] == "sql/due_types" else load(*of))
        health = await app.health()

    assert "jobs wait: off" in " ".join(finding.message for finding in health.findings)


def test_a_client_without_an_event_loop_is_told_the_same(make_app: Any) -> None:
    with make_app(mail).sync as client:
        client.start(mail, 1)
        health = client.health(max_age=timedelta(0))

    assert not health.healthy
    assert levels(health) == {"database": "ok", "schema": "ok", "hints": "ok", "workers": "error", "age": "error"}


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_a_pooler_of_which_the_app_was_not_told_is_named(pgbouncer_dsn: str, library: str) -> None:
    address = pgbouncer_dsn.replace("://", f"+{library}://", 1)

    told = await Onward(address, jobs=[mail], schema="nowhere", pgbouncer=True).health()
    untold = await Onward(address, jobs=[mail], schema="nowhere").health()

    assert levels(told)["database"] == "ok"
    assert levels(untold) == {"database": "error"}
    assert "pgbouncer=True" in str(untold.findings[0].advice)


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_a_server_that_is_away_or_silent_is_a_finding_in_time(
    postgres_dsn: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.client.health._FRESH", 0.0)
    async with proxied(postgres_dsn) as (proxy, dsn):
        target = dsn.replace("://", f"+{library}://", 1)
        options: Any = {"jobs": [mail], "schema": "healthy", "migrate": True, "observers": []}
        app, closed = Onward(target, **options), Onward(target, **options)
        within = timedelta(seconds=0.5)

        def told(health: Health) -> str:
            assert levels(health) == {"database": "error"}
            return health.findings[0].message

        async with asyncio.timeout(SOON.total_seconds()), app:
            client = app.sync
            await asyncio.to_thread(client.open)
            proxy.freeze()
            assert "no answer within" in told(await app.health(timeout=within))
            assert "no answer within" in told(await closed.health(timeout=within))
            assert "no answer within" in told(await asyncio.to_thread(client.health, timeout=within))
            proxy.thaw()
            proxy.cut()
            assert "cannot be reached" in told(await closed.health(timeout=within))
            assert "cannot be reached" in told(await app.health(timeout=within))
            proxy.mend()
            assert (await app.health()).healthy
            await asyncio.to_thread(client.close)
