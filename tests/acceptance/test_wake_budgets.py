"""One job does not wake a hundred workers, and a hundred idle workers leave the database alone."""

import asyncio
import re
import secrets
import sys
from collections.abc import Callable, Iterator

import pytest

import servers
from programs.fleet import look, make_app
from support import SOON, fleet

WORKERS, SLOTS = 10, 10
MOST_IDLE_STATEMENTS = 3.5
"""Per second and process of ten workers, beside their signs of life."""
SIGN_EVERY = 15.0
_ENTRY = re.compile(r"^\S+ \S+ \S+ \[\d+\] LOG:  (?:execute [^:]*|statement): ", re.MULTILINE)


class Statements:
    """What a server that logs every statement has been asked since the last time."""

    def __init__(self, instance: servers.Instance) -> None:
        self._log, self._read = instance.log, 0

    def since(self) -> list[str]:
        with self._log.open(errors="replace") as log:
            log.seek(self._read)
            text = log.read()
            self._read = log.tell()
        return _ENTRY.split(text)[1:]


@pytest.fixture
def database() -> Iterator[servers.Instance]:
    with servers.private_postgres(log_statement="all", max_connections=400) as instance:
        yield instance


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url")) if request.param else ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "broker",
    [
        pytest.param("", id="postgres"),
        pytest.param("redis", marks=pytest.mark.slow),
        pytest.param("nats", marks=pytest.mark.slow),
    ],
    indirect=True,
)
async def test_jobs_one_by_one_are_claimed_about_once_and_idle_workers_ask_little(
    database: servers.Instance, broker: str, scale: Callable[[int], int], capsys: pytest.CaptureFixture[str]
) -> None:
    processes, jobs, seconds = max(scale(10), 3), scale(1000), max(scale(30), 5)
    schema = f"t_{secrets.token_hex(6)}"
    statements = Statements(database)

    async with (
        make_app(database.dsn, schema, broker) as app,
        fleet(processes, database.dsn, schema, WORKERS, SLOTS, broker),
    ):
        await asyncio.sleep(9)  # until every process has told the others of itself, and looked at everything once
        statements.since()
        await asyncio.sleep(seconds)
        asked = statements.since()
        for n in range(jobs):
            await (await app.start(look, n)).wait(timeout=SOON)
        claims = sum("-- Claim the best pending jobs" in statement for statement in statements.since())

    signs = sum("-- A worker's sign of life" in statement for statement in asked)
    idle = (len(asked) - signs) / seconds
    with capsys.disabled():
        sys.stderr.write(
            f"\n  {processes} processes: {idle:.1f} statements/s idle, {claims / jobs:.2f} claims per job\n"
        )
    assert jobs <= claims <= 2 * jobs
    assert idle <= MOST_IDLE_STATEMENTS * processes
    assert signs <= processes * WORKERS * (seconds / SIGN_EVERY + 1)
