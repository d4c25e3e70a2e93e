"""The sweep looks at every connection of its database, so it has one of its own."""

import os
import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest


@pytest.fixture(scope="session")
def postgres_dsn(postgres_server: str) -> Iterator[str]:
    """Other tests of the same run may have connections to theirs."""
    name = f"onward_sweep_{os.getpid()}_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        yield urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
