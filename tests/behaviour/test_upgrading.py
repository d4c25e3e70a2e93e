"""Tables of an older version, with jobs in them, are brought up in place, and the jobs run."""

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onward import Attempt, Onward, job, new_id
from onward.errors import SchemaMissing
from onward.state.statement import Statements
from support import SOON

NEWEST = {"postgres": 13, "sqlite": 10}


@job("old")
async def old(attempt: Attempt[int]) -> int:
    return attempt.input + 1


def write(app: Onward, target: str, sql: str) -> None:
    if app.state.dialect == "postgres":
        with psycopg.connect(target) as connection:
            connection.execute(sql.encode())
    else:
        with sqlite3.connect(target.removeprefix("sqlite:///")) as file:
            file.execute(sql)
        file.close()


@pytest.mark.parametrize("version", range(1, max(NEWEST.values())))
async def test_what_an_older_version_has_stored_runs_in_the_newest(
    make_app: Callable[..., Onward], target: str, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    app, every = make_app(old, migrate=False), Statements.migrations
    assert app.state.newest_version == NEWEST[app.state.dialect]
    if version >= app.state.newest_version:
        pytest.skip("nothing to be brought up")
    with monkeypatch.context() as patch:
        patch.setattr(Statements, "migrations", lambda self: [one for one in every(self) if one[0] <= version])
        async with make_app(old):
            pass
    state: Any = app.state
    table = f'"{state.schema}".job' if app.state.dialect == "postgres" else f"{state.prefix}job"
    ids, then = [str(new_id()) for _ in range(3)], "now()" if app.state.dialect == "postgres" else "1"
    for id in ids:
        columns = "id, chain_id, chain_index, type_name, payload_version, status, rank, deferred, input, created_at"
        values = f"'{id}', '{id}', 0, 'old', 1, 'pending', 0, false, '7', {then}"
        write(app, target, f"INSERT INTO {table} ({columns}, scheduled_at, root_id) VALUES ({values}, {then}, '{id}')")

    before = max(number for number, *_ in every(state.sql) if number <= version)
    with pytest.raises(SchemaMissing, match=f"is at version {before}"):
        await app.open()
    async with make_app(old) as upgraded, upgraded.worker():
        page = await upgraded.chains()
        outputs = [await upgraded.chain(old, chain.id).wait(timeout=SOON) for chain in page]
        assert list(await upgraded.schedules.list()) == []
        assert list(await upgraded.limits.list()) == []
        assert await upgraded.prune(old, older_than=timedelta()) == 3

    assert outputs == [8, 8, 8]
