"""`onward run ID --dry`: a handler runs, and no table shows it."""

import importlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from onward import SyncOnward

SHOP = """
import threading
from contextlib import suppress
from datetime import UTC, datetime
@dataclass
class Order:
    id: int
@job("note")
async def note(attempt: Attempt[str]) -> str:
    return attempt.input
@job("ship", internal=True)
async def ship(attempt: Attempt[str]) -> str:
    return attempt.input

@job("phases", continues_to=[ship])
async def phases(attempt: Attempt[Order]) -> Next[str]:
    attempt.progress(0.5, "half")
    await attempt.start(note, "outside")
    async with attempt.prepare() as tx:
        await tx.execute("insert into paid (id) values (:id)", id=attempt.input.id)
    async with attempt.complete() as tx:
        assert await tx.fetchval("select count(*) from paid") == 1
        await tx.execute("update paid set id = id + 1")
        await attempt.start(note, "by the attempt")
        await app.start(note, "by the app", tx=tx)
        tx.after_commit(lambda: 1 / 0)
        return attempt.continue_with(ship, "parcel", delay=timedelta(hours=1))

@job("atomic")
async def atomic(attempt: Attempt[Order]) -> int:
    async with attempt.prepare(atomic=True) as tx:
        await tx.execute("insert into paid (id) values (:id)", id=1)
    async with attempt.complete() as tx:
        await app.cancel(attempt.chain_id, tx=tx)
        await app.pause(note, tx=tx)
        return 1

@job("threaded")
def threaded(attempt: Attempt[Order, SyncTransaction]) -> int:
    with attempt.prepare() as tx:
        tx.execute("insert into paid (id) values (:id)", id=7)
    with attempt.complete() as tx:
        attempt.start(note, "by a thread")
        return int(tx.fetchval("select count(*) from paid"))

@job("again")
async def again(attempt: Attempt[Order]) -> int:
    return attempt.reschedule(delay=timedelta(minutes=5))

@job("later")
async def later(attempt: Attempt[Order]) -> int:
    async with attempt.complete() as tx:
        await tx.execute("insert into paid (id) values (1)")
        raise Reschedule(at=datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC))

@job("sooner")
def sooner(attempt: Attempt[Order]) -> int:
    raise Reschedule(delay=timedelta(minutes=5))

@job("in_a_bare_thread")
async def in_a_bare_thread(attempt: Attempt[Order]) -> str:
    said = []
    def write() -> None:
        try:
            with app.sync as own:
                said.append(own.start(note, "from a thread").id)
        except Exception as error:
            said.append(str(error))
    thread = threading.Thread(target=write)
    thread.start()
    await asyncio.to_thread(thread.join)
    return str(said[0])

@job("raises")
async def raises(attempt: Attempt[Order]) -> int:
    async with attempt.complete() as tx:
        await tx.execute("insert into paid (id) values (1)")
        raise ValueError(f"order {attempt.input.id}")

@job("poisoned")
async def poisoned(attempt: Attempt[Order]) -> int:
    async with attempt.complete() as tx:
        await tx.execute("insert into nowhere (id) values (1)")
        return 1

@job("alone")
async def alone(attempt: Attempt[Order]) -> int:
    await app.start(note, "alone")
    return 1

@job("beside")
async def beside(attempt: Attempt[Order]) -> int:
    async with app.transaction() as tx:
        await tx.execute("insert into paid (id) values (1)")
    return 1

@job("cancelled")
async def cancelled(attempt: Attempt[Order]) -> int:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task
    return 1

@job("cancels_itself")
async def cancels_itself(attempt: Attempt[Order]) -> int:
    asyncio.current_task().cancel()
    await asyncio.sleep(60)
    return 1

@job("in_a_process", executor="process", continues_to=[ship])
def in_a_process(attempt: Attempt[Order]) -> Outcome[str]:
    attempt.progress(0.5, "half")
    return attempt.continue_with(ship, f"parcel {attempt.input.id}")

@job("too_much", executor="process")
def too_much(attempt: Attempt[Order]) -> int:
    with attempt.complete():
        return 1

@job("by_hand")
async def by_hand(attempt: Attempt[Order]) -> int:
    with suppress(Exception):
        async with attempt.complete() as tx:
            await tx.execute("insert into paid (id) values (1)")
            await tx.execute("commit")
    return 1

@job("wrong", continues_to=[ship])
async def wrong(attempt: Attempt[Order]) -> Outcome[str]:
    return Done(7)

fetch = JobType("fetch", input=str, output=int)
@job("blocked", blocked_by=[fetch])
async def blocked(attempt: Attempt[Order]) -> int:
    return sum(attempt.outputs_of(fetch))

jobs = [note, ship, phases, atomic, threaded, again, raises, poisoned, alone, beside, by_hand, wrong, fetch, blocked]
jobs += [cancelled, cancels_itself, in_a_process, too_much, later, sooner, in_a_bare_thread]
"""


@pytest.fixture
def tables(target: str, schema: str, client: SyncOnward) -> Callable[[], dict[str, Any]]:
    """All that is in the database."""
    if "postgres" in target:
        with psycopg.connect(target, autocommit=True) as own:
            own.execute("drop table if exists paid; create table paid (id integer)")

        def read() -> dict[str, Any]:
            with psycopg.connect(target) as own:
                named = own.execute(
                    "select table_schema, table_name from information_schema.tables "
                    "where table_schema = %s or table_name = 'paid'",
                    [schema],
                ).fetchall()
                return {
                    t: own.execute(f'select x::text from "{s}"."{t}" x order by 1'.encode()).fetchall()
                    for s, t in named
                }

        return read
    path = target.removeprefix("sqlite:///")
    with sqlite3.connect(path) as made:
        made.execute("create table paid (id integer)")

    def look() -> dict[str, Any]:
        with sqlite3.connect(path) as own:
            named = [name for (name,) in own.execute("select name from sqlite_master where type = 'table'")]
            return {name: own.execute(f'select * from "{name}" order by 1').fetchall() for name in named}

    return look


@pytest.fixture
def dry(onward: Any, module: Any, tables: Any) -> Callable[..., Any]:
    """Starts a chain and runs its job dry, for people and for programs; compares all tables."""
    *path, app = module("from datetime import timedelta\n" + SHOP)

    def run(type: str, *options: str, code: int = 0) -> tuple[Any, str]:
        chain = onward("start", type, '{"id": 7}', "--app", app, *path).out.strip()
        before = tables()
        assert len(before) >= 4
        shown = onward("run", chain, "--dry", "--app", app, "--json", *options, code=code).json
        told = onward("run", chain, "--dry", "--app", app, *options, code=code).out
        assert tables() == before
        assert "nothing of this was kept" in told
        assert shown["ended_by_hand"] is False
        return shown, told

    return run


def test_what_a_handler_writes_starts_and_returns_is_shown_and_not_kept(dry: Any) -> None:
    shown, told = dry("phases")

    assert [one["sql"].split()[0] for one in shown["statements"]] == ["insert", "select", "update"]
    assert shown["statements"][0]["parameters"] == {"id": 7}
    assert [one["input"] for one in shown["started"]] == ["outside", "by the attempt", "by the app"]
    assert shown["continues"] == {"type": "ship", "input": "parcel", "delay": 3600.0, "at": None}
    assert "sent       insert into paid (id) values (:id)" in told
    assert 'continues  with ship "parcel"' in told


def test_one_transaction_for_both_phases_is_undone_too(dry: Any) -> None:
    assert dry("atomic")[0]["returned"] == 1


def test_a_handler_in_a_thread_leaves_no_trace_either(dry: Any) -> None:
    shown, told = dry("threaded")

    assert shown["returned"] == 1
    assert [one["input"] for one in shown["started"]] == ["by a thread"]
    assert "returned   1" in told


def test_a_handler_that_runs_in_a_process_is_run_too(dry: Any) -> None:
    assert dry("in_a_process")[0]["continues"]["input"] == "parcel 7"

    raised = dry("too_much", code=3)[0]["raised"]
    assert (raised["type"], "transactions stay in the worker" in raised["message"]) == ("PhaseError", True)


def test_a_handler_that_wants_to_run_again_is_not_rescheduled(dry: Any) -> None:
    shown, told = dry("again")

    assert shown["rescheduled"] == {"delay": 300.0, "at": None}
    assert "rescheduled in 5m" in told


def test_to_raise_reschedule_is_an_outcome_and_no_error(dry: Any) -> None:
    shown, told = dry("later")

    assert shown["rescheduled"] == {"delay": 0.0, "at": "2040-01-02T03:04:05Z"}
    assert "raised" not in shown
    assert "rescheduled to 2040-01-02 03:04:05 UTC" in told
    assert dry("sooner")[0]["rescheduled"] == {"delay": 300.0, "at": None}


def test_what_a_handler_raises_is_shown_with_where(dry: Any) -> None:
    shown, told = dry("raises", code=3)

    assert (shown["raised"]["type"], shown["raised"]["message"]) == ("ValueError", "order 7")
    assert "in raises" in shown["raised"]["traceback"].splitlines()[0]
    assert "raised     ValueError: order 7" in told
    assert [one["sql"].split()[0] for one in shown["statements"]] == ["insert"]
    assert "nowhere" in dry("poisoned", code=3)[0]["raised"]["message"]
    assert dry("wrong", code=3)[0]["raised"]["type"] == "PayloadError"


@pytest.mark.parametrize("type", ["cancelled", "cancels_itself"])
def test_a_cancellation_of_the_handlers_own_is_an_error_as_in_a_worker(dry: Any, type: str) -> None:
    assert dry(type, code=3)[0]["raised"]["type"] == "CancelledError"


@pytest.mark.parametrize("type", ["alone", "beside"])
def test_what_could_not_be_undone_is_refused(dry: Any, type: str) -> None:
    raised = dry(type, code=3)[0]["raised"]

    assert raised["type"] == "TransactionOpen"
    assert "a dry run can only undo" in raised["message"]


def test_a_thread_of_the_handlers_own_cannot_write_either(dry: Any) -> None:
    assert "a dry run can only undo" in dry("in_a_bare_thread")[0]["returned"]


def test_it_is_said_where_a_handler_commits_by_hand_and_so_keeps_something(
    onward: Any, module: Any, tables: Any, client: SyncOnward
) -> None:
    *path, app = module("from datetime import timedelta\n" + SHOP)
    chain = onward("start", "by_hand", '{"id": 7}', "--app", app, *path).out.strip()

    shown = onward("run", chain, "--dry", "--app", app, "--json", code=3).json
    told = onward("run", chain, "--dry", "--app", app, code=3).out

    assert (shown["ended_by_hand"], shown["raised"]["type"]) == (True, "TransactionClosed")
    assert "what it has committed is kept" in told
    assert "nothing of this was kept" not in told
    assert len(tables()["paid"]) == 2


def test_a_job_gets_the_outputs_it_waited_for(onward: Any, module: Any, client: SyncOnward, tables: Any) -> None:
    *path, app = module("from datetime import timedelta\n" + SHOP)
    sys.path.insert(0, path[-1])
    shop: Any = importlib.import_module(app.partition(":")[0])
    with shop.app.sync as own:
        fetched = own.start(shop.fetch, "a")
        chain = own.start(shop.blocked, shop.Order(1), blockers=[fetched])
        with own.complete(fetched) as completion:
            completion.done(3)
    before = tables()

    assert onward("run", chain.id, "--dry", "--app", app, "--json").json["returned"] == 3
    assert tables() == before


def test_it_refuses_what_it_cannot_do(onward: Any, module: Any, client: SyncOnward, tables: Any) -> None:
    *path, app = module("from datetime import timedelta\n" + SHOP)
    chain = onward("start", "fetch", '"a"', "--app", app, *path).out.strip()

    assert "say --dry" in onward("run", chain, "--app", app, code=1).words
    assert "there is no job" in onward("run", uuid4(), "--dry", "--app", app, code=1).words
    assert "no handler" in onward("run", chain, "--dry", "--app", app, code=1).words


def test_the_debugger_opens_where_the_handler_raised(dry: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def look(trace: Any) -> None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        opened.append(trace.tb_frame.f_code.co_name)

    monkeypatch.setattr("pdb.post_mortem", look)

    dry("raises", "--pdb", code=3)

    assert opened == ["raises", "raises"]


@pytest.mark.slow
def test_a_session_of_sqlalchemy_is_rolled_back_too(
    module: Any, client: SyncOnward, tables: Any, target: str, tmp_path: Path
) -> None:
    """In processes of their own, as engines belong to one event loop."""
    address = target.replace("postgresql://", "postgresql+asyncpg://").replace("sqlite://", "sqlite+aiosqlite://")
    app = module(
        "from sqlalchemy import text\n"
        "from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine\n"
        "@job('note')\nasync def note(attempt: Attempt[str]) -> str:\n    return ''\n"
        "@job('pay')\nasync def pay(attempt: Attempt[int, AsyncSession]) -> int:\n"
        "    async with attempt.complete() as session:\n"
        "        await session.execute(text('insert into paid (id) values (1)'))\n"
        "        await app.start(note, 'x', tx=session)\n"
        "        return 1\njobs = [pay, note]\n"
        f"def Onward(_, **options):\n    import onward\n    engine = create_async_engine({address!r})\n"
        "    return onward.Onward(async_sessionmaker(engine), **options)\n"
    )[-1]

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "onward", *arguments, "--app", app]
        return subprocess.run(command, cwd=tmp_path, timeout=60, capture_output=True, text=True, check=True).stdout

    chain = run("start", "pay", "1").strip()
    before = tables()

    shown = json.loads(run("run", chain, "--dry", "--json"))

    assert tables() == before
    assert (shown["statements"], shown["returned"], shown["started"][0]["type"]) == (None, 1, "note")


ORM = """
from sqlalchemy import {engine}
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
class Base(DeclarativeBase):
    pass
class Paid(Base):
    __tablename__ = "paid"
    id: Mapped[int] = mapped_column(primary_key=True)
@job("prepares")
async def prepares(attempt: Attempt[int, AsyncSession]) -> int:
    async with attempt.prepare() as session:
        session.add(Paid(id=attempt.input))
    raise AssertionError("the commit of prepare() fails")
@job("completes")
async def completes(attempt: Attempt[int, AsyncSession]) -> int:
    async with attempt.complete() as session:
        session.add(Paid(id=attempt.input))
        return 1
@job("both")
async def both(attempt: Attempt[int, AsyncSession]) -> int:
    async with attempt.prepare() as session:
        session.add(Paid(id=attempt.input))
    async with attempt.complete() as session:
        return await session.scalar(text("select count(*) from paid"))
jobs = [prepares, completes, both]
def Onward(_, **options):
    import onward
    return onward.Onward(async_sessionmaker(create_async_engine({address!r})), **options)
"""


@pytest.mark.slow
def test_what_waits_in_a_session_is_written_as_a_commit_would(
    module: Any, client: SyncOnward, tables: Any, target: str, tmp_path: Path
) -> None:
    address = target.replace("postgresql://", "postgresql+asyncpg://").replace("sqlite://", "sqlite+aiosqlite://")
    app = module(ORM.format(engine="text", address=address))[-1]
    unique = "create unique index only_once on paid (id); insert into paid (id) values (7)"
    if "postgres" in target:
        with psycopg.connect(target, autocommit=True) as own:
            own.execute(unique)
    else:
        with sqlite3.connect(target.removeprefix("sqlite:///")) as file:
            file.executescript(unique)

    def run(*arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "onward", *arguments, "--app", app]
        done = subprocess.run(command, cwd=tmp_path, timeout=60, capture_output=True, text=True, check=False)
        assert done.returncode == code, done
        return done.stdout

    def dry(type: str, input: int, code: int = 0) -> Any:
        chain = run("start", type, str(input)).strip()
        before = tables()
        shown = json.loads(run("run", chain, "--dry", "--json", code=code))
        assert tables() == before
        return shown

    for type in ("prepares", "completes"):
        assert dry(type, 7, code=3)["raised"]["type"] == "IntegrityError"
    assert dry("completes", 8)["returned"] == 1
    assert dry("both", 8)["returned"] == 2


def test_secrets_are_hidden_unless_asked_for(onward: Any, module: Any, client: SyncOnward) -> None:
    *path, app = module(
        "@dataclass\nclass Card:\n    number: Annotated[str, Secret]\n"
        "@job('pay')\nasync def pay(attempt: Attempt[Card]) -> str:\n    return 'paid with ' + attempt.input.number\n"
        "jobs = [pay]\n"
    )
    chain = onward("start", "pay", '{"number": "4711"}', "--app", app, *path).out.strip()

    for form in ((), ("--json",)):
        assert "4711" not in onward("run", chain, "--dry", "--app", app, *form).out
        assert "4711" in onward("run", chain, "--dry", "--app", app, "--payloads", *form).out


WALLET = """
@dataclass
class Card:
    number: Annotated[str, Secret]
@job("pay")
async def pay(attempt: Attempt[Card]) -> str:
    return attempt.input.number
@job("step", internal=True)
async def step(attempt: Attempt[Card]) -> str:
    return attempt.input.number
@job("plain", continues_to=[step])
async def plain(attempt: Attempt[int]) -> Next[str]:
    async with attempt.complete() as tx:
        await app.start(pay, Card("4711 to start"), tx=tx)
        return attempt.continue_with(step, Card("4711 to go on"))
jobs = [pay, step, plain]
"""


def test_secrets_of_what_it_started_and_went_on_to_are_hidden_too(onward: Any, module: Any) -> None:
    *path, app = module(WALLET)
    chain = onward("start", "plain", "1", "--app", app, *path).out.strip()

    for form in ((), ("--json",)):
        assert "4711" not in onward("run", chain, "--dry", "--app", app, *form).out
        shown = onward("run", chain, "--dry", "--app", app, "--payloads", *form).out
        assert "4711 to start" in shown
        assert "4711 to go on" in shown


def test_what_is_encrypted_can_be_asked_for(onward: Any, module: Any) -> None:
    encryption = "from onward.crypto import Encryption\nkeys = Encryption({'a': 'MDEyMzQ1Njc4OWFiY2RlZg=='})\n"
    *path, app = module(
        encryption + WALLET.replace('@job("', '@job(encryption=keys, name="').replace("Annotated[str, Secret]", "str")
    )
    pay, chain = (
        onward("start", *words, "--app", app, *path).out.strip()
        for words in (("pay", '{"number": "4711"}'), ("plain", "1"))
    )

    assert onward("run", pay, "--dry", "--app", app, "--payloads", "--json").json["returned"] == "4711"
    shown = onward("run", chain, "--dry", "--app", app, "--payloads", "--json").json
    assert shown["started"][0]["input"] == {"number": "4711 to start"}
    assert shown["continues"]["input"] == {"number": "4711 to go on"}
    assert "onward:sealed" not in onward("run", chain, "--dry", "--app", app).out
