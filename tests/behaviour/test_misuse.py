"""Every call of a client with values that nobody should pass: refused in words, or done; never half, nothing breaks."""

import inspect
import math
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from onward import Attempt, Backoff, Deduplication, JobType, Onward, OnwardError, Slice, job, new_id
from onward.errors import ConfigurationError
from support import SOON

LATER = timedelta(hours=1)


class Hostile:
    """Whatever is asked of it raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __bool__(self) -> bool:
        raise RuntimeError("neither")

    __hash__ = None  # type: ignore[assignment]


class Text(str):
    """Text, but not only."""


def endless() -> Iterator[int]:
    number = 0
    while True:
        yield (number := number + 1)


ODD: dict[str, Any] = {
    "None": None,
    "True": True,
    "zero": 0,
    "minus one": -1,
    "2**31": 2**31,
    "2**63": 2**63,
    "10**400": 10**400,
    "half": 0.5,
    "nan": math.nan,
    "infinity": math.inf,
    "Decimal": Decimal("NaN"),
    "no text": "",
    "text": "abc",
    "subclass of text": Text("abc"),
    "huge text": "x" * 1_200_000,
    "NUL": "a\0b",
    "surrogate": "caf\udce9",
    "bytes": b"abc",
    "list": [],
    "list of None": [None],
    "dict": {"a": 1},
    "endless": endless,
    "object": object(),
    "hostile": Hostile(),
    "class": int,
    "function": print,
    "naive": datetime(2030, 1, 1),  # noqa: DTZ001
    "first moment": datetime.min.replace(tzinfo=UTC),
    "last moment": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    "date": date(2030, 1, 1),
    "time": time(1),
    "longest": timedelta.max,
    "shortest": timedelta.min,
    "id": uuid4(),
    "id of asyncpg's": asyncpg.pgproto.pgproto.UUID(str(uuid4())),
    "id as text": str(uuid4()),
    "no id": UUID(int=0),
    "job type": JobType("strange", input=int, output=int),
    "slice": Slice("strange"),
    "backoff": Backoff(),
}


@job("work")
async def work(attempt: Attempt[int]) -> int:
    return attempt.input


@job("after", blocked_by=[work])
async def after(attempt: Attempt[int]) -> int:
    return attempt.input


def calls(app: Any, chain: Any, ended: Any) -> dict[str, Callable[[Any], Any]]:
    """Each takes one strange value."""
    return {
        "start type": lambda value: app.start(value, 1),
        "start input": lambda value: app.start(work, value),
        "start tx": lambda value: app.start(work, 1, tx=value),
        "start id": lambda value: app.start(work, 1, id=value),
        "start delay": lambda value: app.start(work, 1, delay=value),
        "start at": lambda value: app.start(work, 1, at=value),
        "start priority": lambda value: app.start(work, 1, priority=value),
        "start blockers": lambda value: app.start(after, 1, blockers=value),
        "start blocker": lambda value: app.start(after, 1, blockers=[value]),
        "start deduplication": lambda value: app.start(work, 1, deduplication=value),
        "key": lambda value: app.start(work, 1, deduplication=Deduplication(value)),
        "scope": lambda value: app.start(work, 1, deduplication=Deduplication("k", scope=value)),
        "window": lambda value: app.start(work, 1, deduplication=Deduplication("k", window=value)),
        "exclude": lambda value: app.start(work, 1, deduplication=Deduplication("k", exclude=value)),
        "start_many": lambda value: app.start_many(value),
        "start_many one": lambda value: app.start_many([work.with_input(1), value]),
        "start_many tx": lambda value: app.start_many([work.with_input(1)], tx=value),
        "chain type": lambda value: app.chain(value, chain.id),
        "chain id": lambda value: app.chain(work, value).get(),
        "wait timeout": lambda value: ended.wait(timeout=value),
        "get tx": lambda value: chain.get(tx=value),
        "complete": lambda value: entered(app.complete(value)),
        "complete tx": lambda value: entered(app.complete(chain, tx=value)),
        "done": lambda value: completed(app, chain, value),
        "cancel": lambda value: app.cancel(value),
        "cancel tx": lambda value: app.cancel(new_id(), tx=value),
        "retry": lambda value: app.retry(value),
        "trigger": lambda value: app.trigger(value),
        "delete": lambda value: app.delete(value),
        "delete tx": lambda value: app.delete(new_id(), tx=value),
        "cascade": lambda value: app.delete(new_id(), cascade=value),
        "cancel cascade": lambda value: app.cancel(new_id(), cascade=value),
        "pause": lambda value: app.pause(value),
        "resume": lambda value: app.resume(value),
        "paused tx": lambda value: app.paused(tx=value),
        "find_job": lambda value: app.find_job(value),
        "find_chain": lambda value: app.find_chain(value),
        "blockers_of": lambda value: app.blockers_of(value),
        "blocked_by": lambda value: app.blocked_by(value),
        "jobs after": lambda value: app.jobs(after=value),
        "jobs limit": lambda value: app.jobs(limit=value),
        "jobs tx": lambda value: app.jobs(tx=value),
        **{f"jobs {name}": _listing(app, name) for name in FILTERS},
        "transaction": lambda value: entered(app.transaction(value)),
        "execute": lambda value: executed(app, value),
        "parameter": lambda value: executed(app, "SELECT :value", value=value),
        "after_commit": lambda value: executed(app, "SELECT 1", action=value),
    }


FILTERS = (
    *("types", "status", "chains", "root_id", "created_from", "created_before", "reason", "error_type"),
    *("failed_from", "failed_before"),
)


def _listing(app: Any, name: str) -> Callable[[Any], Any]:
    return lambda value: app.jobs(**{name: value})


async def entered(block: Any) -> None:
    async with block:
        pass


async def completed(app: Any, chain: Any, value: Any) -> None:
    async with app.transaction() as tx, app.complete(chain, tx=tx) as completion:
        await completion.done(value)
        raise OnwardError("undone")


async def executed(app: Any, sql: Any, action: Any = None, **parameters: Any) -> None:
    async with app.transaction() as tx:
        await tx.execute(sql, **parameters)
        if action is not None:
            tx.after_commit(action)


STATEMENTS = ("execute", "parameter")
"""Of the application's own: what the database's client says of these is not ours to put in words."""


async def outcome(call: Callable[[Any], Any], value: Any) -> BaseException | None:
    try:
        answer = call(endless() if value is endless else value)
        if inspect.isawaitable(answer):
            await answer
    except Exception as error:  # noqa: BLE001 - looked at by the test
        return error
    return None


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def app(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Onward]:
    target = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/jobs.db"}.get(request.param)
    target = target or request.getfixturevalue("postgres_dsn")
    schema = f"t_{secrets.token_hex(6)}"
    async with Onward(target, jobs=[work, after], schema=schema, migrate=True, observers=[]) as app:
        yield app


async def test_no_strange_value_gets_past_the_door(app: Onward, scale: Callable[[int], int]) -> None:
    chain = await app.start(work, 1, delay=LATER)
    ended = await app.start(work, 1)
    async with app.complete(ended) as completion:
        await completion.done(1)
    share = 1 if scale(10) >= 10 else 4  # of the values each call gets every fourth, and each value every fourth call
    raw: list[str] = []
    for turn, (name, call) in enumerate(calls(app, chain, ended).items()):
        before, done = await count(app), 0
        for label, value in list(ODD.items())[turn % share :: share]:
            error = await outcome(call, value)
            done += error is None
            if error is not None and not (isinstance(error, OnwardError) and str(error)) and name not in STATEMENTS:
                raw.append(f"{name}({label}): {type(error).__name__}: {str(error)[:120]}")
        assert await count(app) - before <= (done if name.startswith(STARTING) else 0), f"{name}: refused, but done"

    assert raw == []
    assert (await chain.get()).status == "pending"
    await app.resume(work, after)
    async with app.worker():
        assert await (await app.start(work, 7)).wait(timeout=SOON) == 7


OPTIONS = (
    *("target", "jobs", "migrate", "schema", "prefix", "observers", "max_payload", "pool_size", "pgbouncer"),
    *("lock_timeout", "resources", "required_middleware", "is_transient", "ageing"),
)
WORKERS = (
    *("concurrency", "jobs", "name", "poll", "grace", "lease", "backoff", "guardian", "stall", "resources"),
    *("required_middleware", "ageing"),
)
ONCE = ("jobs", "observers")
"""Gone through once, so that a generator will do; one without end is nobody's mistake."""


@pytest.mark.parametrize("option", OPTIONS)
async def test_no_strange_option_makes_an_app(option: str) -> None:
    def make(value: Any) -> Any:
        options: dict[str, Any] = {"target": "memory://", "jobs": [work], "observers": [], option: value}
        return Onward(options.pop("target"), **options)

    assert await unworded(make, option) == []


@pytest.mark.parametrize("option", WORKERS)
async def test_nor_a_worker(option: str) -> None:
    app = Onward("memory://", jobs=[work], observers=[])

    assert await unworded(lambda value: app.worker(**{option: value}), option) == []


@pytest.mark.parametrize("resources", [[work], [1], [None]])
def test_what_makes_no_resource_is_told_where_it_is_given(resources: Any) -> None:
    app = Onward("memory://", jobs=[work], observers=[])

    for give in (
        lambda: Onward("memory://", jobs=[work], resources=resources),
        lambda: app.worker(resources=resources),
        lambda: app.register(resources=resources),
    ):
        with pytest.raises(ConfigurationError, match="a function that makes a context manager"):
            give()


async def test_a_worker_has_no_more_slots_than_fit_into_memory() -> None:
    app = Onward("memory://", jobs=[work], observers=[])

    with pytest.raises(ConfigurationError, match="concurrency=100000000000 is out of range"):
        app.worker(concurrency=10**11)


async def unworded(make: Callable[[Any], Any], option: str) -> list[str]:
    values = {label: value for label, value in ODD.items() if not (value is endless and option in ONCE)}
    errors = {label: await outcome(make, value) for label, value in values.items()}
    return [
        f"{option}={label}: {error!r}"
        for label, error in errors.items()
        if error is not None and not (isinstance(error, OnwardError) and str(error))
    ]


STARTING = ("start", "key", "scope", "window", "exclude")


async def count(app: Onward) -> int:
    return len([chain async for chain in app.chains(limit=1000)])
