"""Fixtures for every kind of test. Servers are found, started or installed by servers.py, and only when asked for."""

import gc
import logging
import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from urllib.parse import urlsplit

import hypothesis
import psycopg
import pytest

import servers

# A loaded machine is slow to draw and to run, which says nothing of what is tested.
hypothesis.settings.register_profile("onward", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("onward")
pytest.register_assert_rewrite("onward.conformance")  # lets pytest explain the assertions of the shipped suites

# `tmp_path` lies in memory where there is room: no test asks what a file is worth after the machine has died.
_MEMORY = "/dev/shm"
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 2 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)


# A shell that starts a suite in the background has it, and all that it starts, ignore Ctrl-C, which some tests send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Thousands of tests are objects that stay: a collection of garbage in the midst of one need not look at them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def scale() -> Callable[[int], int]:
    """`scale(1000)` jobs: a tenth of it in `make test`, all of it in `make test-all`, never none."""
    factor = float(os.environ.get("ONWARD_TEST_SCALE", "0.1"))

    def scaled(count: int) -> int:
        return max(1, int(count * factor))

    return scaled


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """For what configures logging for the whole process, as Litestar and Django do."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Iterator[str]:
    """The DSN of a role that may create databases; tests themselves use `postgres_dsn`."""
    with _heard(pytestconfig, servers.postgres()) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def postgres_dsn(postgres_server: str) -> Iterator[str]:
    """A database of this run's own, dropped at the end."""
    name = f"onward_test_{os.getpid()}_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        # A server that is to die, and to keep what it has said, is a private one.
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        yield _with_database(postgres_server, name)
        # FORCE: a failed test may have left connections behind.
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def pgbouncer_dsn(pytestconfig: pytest.Config, postgres_dsn: str) -> Iterator[str]:
    """The database of `postgres_dsn` through PgBouncer, which pools by transaction."""
    with _heard(pytestconfig, servers.pgbouncer(postgres_dsn)) as dsn:
        yield _with_database(dsn, urlsplit(postgres_dsn).path.lstrip("/"))


@pytest.fixture(scope="session")
def redis_url(pytestconfig: pytest.Config) -> Iterator[str]:
    with _heard(pytestconfig, servers.redis()) as url:
        yield url


@pytest.fixture(scope="session")
def redis_cluster_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """One node of a cluster of three masters; it knows the others."""
    with _heard(pytestconfig, _first_node()) as url:
        yield url


@contextmanager
def _first_node() -> Iterator[str]:
    with servers.private_redis_cluster() as nodes:
        yield nodes[0].dsn


@pytest.fixture(scope="session")
def nats_url(pytestconfig: pytest.Config) -> Iterator[str]:
    with _heard(pytestconfig, servers.nats()) as url:
        yield url


@pytest.fixture(scope="session")
def rabbitmq_url(pytestconfig: pytest.Config) -> Iterator[str]:
    with _heard(pytestconfig, servers.rabbitmq()) as url:
        yield url


@pytest.fixture(scope="session")
def sqs_url(pytestconfig: pytest.Config) -> Iterator[str]:
    with _heard(pytestconfig, servers.sqs()) as url:
        yield url


@pytest.fixture(scope="session")
def node_modules(pytestconfig: pytest.Config) -> Iterator[str]:
    """Where Node.js finds BullMQ and the Redis client it wants."""
    with _heard(pytestconfig, servers.node_modules("bullmq@6.7.0", "ioredis@6.0.0")) as folder:
        yield folder


def _with_database(dsn: str, name: str) -> str:
    return urlsplit(dsn)._replace(path=f"/{name}").geturl()


@contextmanager
def _heard(config: pytest.Config, server: AbstractContextManager[str]) -> Iterator[str]:
    """Enter it with its progress on the terminal, and without counting apt-get's minutes as the test's time."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with ExitStack() as stack:
        remaining, _ = signal.setitimer(signal.ITIMER_REAL, 0)  # pytest-timeout's alarm
        with capture.global_and_fixture_disabled():
            dsn = stack.enter_context(server)
        signal.setitimer(signal.ITIMER_REAL, remaining)
        yield dsn
