"""A role that may create functions and operators where `search_path` looks has none of them run by our statements."""

import re
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from onward import Attempt, ChainFailed, Deduplication, JobStatus, Next, Onward, job
from onward.state.postgres.adapter import PostgresState
from onward.state.statement import BUILTINS, with_servers_own
from support import SOON

TYPES = [
    "uuid",
    "text",
    "boolean",
    "json",
    "jsonb",
    "integer",
    "bigint",
    "double precision",
    "timestamptz",
    "name",
    "oid",
]
SYNTAX = {"extract", "timestamptz", "interval", "json", "uuid"}
"""What may come before a bracket and is also the name of a function."""


# -- by reading


def called(sql: str) -> set[str]:
    """The functions that are named without a schema."""
    bare = re.sub(r"--[^\n]*|'[^']*'|/\*.*?\*/", "", sql)
    bare = re.sub(r"unnest\((?=[^()]*(?:\([^()]*\)[^()]*)*,)", "(", bare)  # of several arrays it is syntax
    names = re.findall(r"(?<![\w.\"])([a-z_]\w*) ?\(", bare, re.IGNORECASE)
    return {name.lower() for name in names} - SYNTAX


def test_what_is_the_servers_own_is_named_as_such() -> None:
    given = (
        "SELECT count(*), a -> 'b' ->> 'max(x)', c||d FROM unnest(e) x, unnest(f, g[1]), pg_catalog.unnest(h) -- min("
    )

    assert with_servers_own(given) == (
        "SELECT pg_catalog.count(*), a OPERATOR(pg_catalog.->) 'b' OPERATOR(pg_catalog.->>) 'max(x)', "
        "c OPERATOR(pg_catalog.||) d FROM pg_catalog.unnest(e) x, unnest(f, g[1]), pg_catalog.unnest(h) -- min("
    )


def test_every_function_of_the_servers_is_known(postgres_dsn: str) -> None:
    state = PostgresState()
    with psycopg.connect(postgres_dsn) as connection:
        found = connection.execute("SELECT proname FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace")
        servers_own = {name for (name,) in found}

    every = called(state.migration_sql()).union(*(called(state.sql(name)) for name in state.sql.names()))

    assert every & servers_own == set(), "add it to BUILTINS"


# -- by trying


@pytest.fixture
def victim(postgres_dsn: str) -> Iterator[str]:
    """The address of a role that finds traps before everything that only nearly fits."""
    role, folder = f"victim_{secrets.token_hex(6)}", f"traps_{secrets.token_hex(6)}"
    database = urlsplit(postgres_dsn).path.lstrip("/")
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {folder}; CREATE ROLE {role} LOGIN SUPERUSER")
        connection.execute(f"ALTER ROLE {role} IN DATABASE {database} SET search_path = {folder}, public")
        connection.execute(f"SET search_path = {folder}, public")
        set_traps(connection)
        try:
            yield postgres_dsn.replace("postgres@", f"{role}@", 1)
        finally:
            connection.execute(f"DROP SCHEMA {folder} CASCADE; DROP OWNED BY {role}; DROP ROLE {role}")


def set_traps(connection: psycopg.Connection) -> None:
    """A function for each type in place of each that takes any; operators likewise."""
    statements = [trap("hashtextextended", "text, integer"), trap("to_timestamp", "integer")]
    statements.append(trap("make_interval", "secs double precision"))
    for name, arguments, kind in connection.execute(
        "SELECT proname, proargtypes::regtype[]::text[], prokind FROM pg_proc "
        "WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY(%s)",
        [list(BUILTINS)],
    ):
        if any(argument.startswith(("any", '"any')) for argument in arguments):
            for each in TYPES:
                concrete = ", ".join(concretely(argument, each) for argument in arguments)
                statements.append(trap(name, concrete, kind=kind))
    for name, each in product(("||", "=", "<>"), TYPES):
        pairs = [(f"{each}[]", f"{each}[]"), (f"{each}[]", each), (each, f"{each}[]"), ("text", each), (each, "text")]
        statements += [trap_operator(name, *pair) for pair in dict.fromkeys([*pairs, (each, each)])]
    statements += [trap_operator(name, "json", "json") for name in ("->", "->>")]
    statements.append(trap_operator("<>", "oid", "integer"))  # with which asyncpg asks about types
    connection.execute(";".join(statements).encode())


def concretely(argument: str, each: str) -> str:
    return f"{each}[]" if "array" in argument else each if argument.startswith(("any", '"any')) else argument


def trap(name: str, arguments: str, *, kind: str = "f") -> str:
    if kind == "a":
        return (
            f"CREATE OR REPLACE FUNCTION trapped_step(bigint, {arguments}) RETURNS bigint LANGUAGE plpgsql "
            f"AS $$BEGIN RAISE EXCEPTION 'trapped: {name}'; END$$;"
            f"CREATE OR REPLACE AGGREGATE {name}({arguments}) (SFUNC = trapped_step, STYPE = bigint, INITCOND = '0')"
        )
    return (
        f"CREATE OR REPLACE FUNCTION {name}({arguments}) RETURNS text LANGUAGE plpgsql "
        f"AS $$BEGIN RAISE EXCEPTION 'trapped: {name}'; END$$"
    )


def trap_operator(name: str, left: str, right: str) -> str:
    function = f"trapped_{'joined' if name == '||' else 'equal' if name == '=' else 'other' if name == '<>' else 'of'}"
    returns = "boolean" if name in ("=", "<>") else "text"
    return (
        f"CREATE OR REPLACE FUNCTION {function}({left}, {right}) RETURNS {returns} LANGUAGE plpgsql "
        f"AS $$BEGIN RAISE EXCEPTION 'trapped: {name}'; END$$;"
        f"CREATE OPERATOR {name} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {function})"
    )


@job("leaf")
async def leaf(attempt: Attempt[int]) -> int:
    if attempt.input < 0:
        raise ValueError("negative")
    return attempt.input


@job("last", internal=True, blocked_by=[leaf])
async def last(attempt: Attempt[int]) -> int:
    return attempt.input


@job("first", continues_to=[last])
async def first(attempt: Attempt[int]) -> Next[int]:
    attempt.progress(0.5, "half")
    async with attempt.complete():
        return attempt.continue_with(last, attempt.input + 1)


@job("both", blocked_by=[leaf], continues_to=[last])
async def both(attempt: Attempt[int]) -> Next[int]:
    return attempt.continue_with(last, sum(attempt.outputs_of(leaf)), blockers=[leaf.with_input(3)])


@pytest.mark.parametrize("kind", ["address", "pool", "engine"])
async def test_nobody_elses_functions_are_run(victim: str, kind: str) -> None:
    with psycopg.connect(victim) as connection, pytest.raises(psycopg.Error, match="trapped"):
        connection.execute("SELECT unnest(ARRAY['a'::text])")
    async with AsyncExitStack() as stack:
        target: Any = victim
        if kind == "pool":
            target = await stack.enter_async_context(asyncpg.create_pool(victim, min_size=1))
        elif kind == "engine":
            target = create_async_engine(victim.replace("://", "+asyncpg://"))
            stack.push_async_callback(target.dispose)
        await do_everything(target)


async def do_everything(target: Any) -> None:
    app = Onward(target, jobs=[leaf, last, first, both], migrate=True, schema=f"t_{secrets.token_hex(6)}")
    async with app, app.worker(poll=timedelta(seconds=1)):
        keyed = await app.start(first, 1, deduplication=Deduplication("key", window=timedelta(hours=1)))
        again = await app.start(first, 1, deduplication=Deduplication("key", window=timedelta(hours=1)))
        blocked = await app.start(both, 1, blockers=[leaf.with_input(4), await app.start(leaf, 5)])
        many = await app.start_many([leaf.with_input(n) for n in range(5)])
        assert (await keyed.wait(timeout=SOON), await again.wait(timeout=SOON)) == (2, 2)
        assert await blocked.wait(timeout=SOON) == 9
        assert [await chain.wait(timeout=SOON) for chain in many] == [0, 1, 2, 3, 4]

        held = await app.start(leaf, -1, delay=timedelta(hours=1))
        waiting = await app.start(both, 1, blockers=[held])
        assert [each.id for each in await app.blocked_by(held)] == [waiting.id]
        await app.pause(leaf)
        await app.trigger(held)
        await app.cancel(waiting, cascade=True)
        with pytest.raises(ChainFailed):
            await waiting.wait(timeout=SOON)
        await app.retry(waiting, held)
        await app.cancel(waiting, cascade=True)
        assert len(await app.chains()) >= 9
        assert await app.jobs(status=JobStatus.FAILED)
        assert len(await app.blockers_of(waiting.id)) == 1
        await app.delete(waiting, cascade=True)
        await app.resume(leaf)
