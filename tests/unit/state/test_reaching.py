"""How libpq is told what an engine was told: all of it, or nothing."""

import ssl
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine

from onward.state.sqlalchemy.reaching import conninfo_of

HERE = "ada:pw@db.example:5433/shop"
TOLD = {"host": "db.example", "port": "5433", "user": "ada", "password": "pw", "dbname": "shop"}


def of_asyncpg(query: str = "", **options: Any) -> str | None:
    return conninfo_of(create_async_engine(f"postgresql+asyncpg://{HERE}{query}", **options).sync_engine)


def test_an_engine_that_was_given_an_address() -> None:
    assert conninfo_to_dict(of_asyncpg() or "") == TOLD
    assert conninfo_to_dict(of_asyncpg("?ssl=verify-full") or "") == {**TOLD, "sslmode": "verify-full"}


def test_what_both_clients_understand() -> None:
    given = {"ssl": "require", "timeout": 3, "server_settings": {"application_name": "the shop", "jit": "off"}}

    told = conninfo_to_dict(of_asyncpg(connect_args=given) or "")

    assert told == {**TOLD, "sslmode": "require", "options": r"-c application_name=the\ shop -c jit=off"}


@pytest.mark.parametrize(
    "given",
    [{"ssl": ssl.create_default_context()}, {"ssl": True}, {"direct_tls": True}, {"password": lambda: "pw"},
     {"connection_class": object}],
)  # fmt: skip
def test_what_libpq_cannot_be_told(given: dict[str, Any]) -> None:
    assert of_asyncpg(connect_args=given) is None


@pytest.mark.parametrize("make", [create_engine, create_async_engine])
def test_options_of_libpq(make: Any) -> None:
    given = {"sslmode": "verify-full", "sslrootcert": "/ca.pem", "prepare_threshold": None}
    engine = make(f"postgresql+psycopg://{HERE}?channel_binding=require", connect_args=given)

    told = conninfo_to_dict(conninfo_of(getattr(engine, "sync_engine", engine)) or "")

    assert told == {**TOLD, "sslmode": "verify-full", "sslrootcert": "/ca.pem", "channel_binding": "require"}


def test_an_application_that_connects_in_a_way_of_its_own() -> None:
    listening = create_engine(f"postgresql+psycopg://{HERE}")
    event.listen(listening, "do_connect", lambda *_: None)

    assert conninfo_of(listening) is None
    assert conninfo_of(create_engine(f"postgresql+psycopg://{HERE}", creator=lambda: None)) is None
    assert of_asyncpg(async_creator=lambda: None) is None
