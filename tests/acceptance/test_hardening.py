"""What the page on hardening says, done exactly as it says, on a private server."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest

import servers
from command import until
from onward import Attempt, Deduplication, Limit, Onward, Permanent, Retention, job
from onward.errors import ChainFailed, DatabaseError
from onward.worker.guardian.contract import GuardianKind
from support import SOON, ClockOf

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/hardening.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
LEASE = timedelta(seconds=30)


def blocks(kind: str) -> list[str]:
    return [text for language, text in BLOCKS if language == kind]


ROLES, RIGHTS, POLICIES = blocks("sql")
HBA, ADDRESS = blocks("text")
MIGRATE, UMASK, CHMOD = blocks("shell")


@job("part")
async def part(attempt: Attempt[int]) -> int:
    attempt.progress(0.5, "half")
    return attempt.input


@job("whole", blocked_by=[part])
async def whole(attempt: Attempt[None]) -> int:
    return sum(attempt.outputs_of(part))


@job("limited", limit=Limit(concurrency=2))
async def limited(attempt: Attempt[int]) -> int:
    return attempt.input


@job("plain")
def plain(attempt: Attempt[int]) -> int:
    with attempt.complete():
        return attempt.input


@job("broken", max_attempts=1)
async def broken(attempt: Attempt[int]) -> int:
    raise Permanent("broken")


JOBS = [part, whole, limited, plain, broken]

HISTORY_BY_HAND = (
    "UPDATE onward.history_part SET is_over = true",
    "INSERT INTO onward.history_part VALUES ('2020-01-01', '2030-01-01')",
    "SELECT onward.drop_history('infinity')",
    "DELETE FROM onward.history",
    "SELECT onward.move_to_history(ARRAY(SELECT id FROM onward.job), '{part}', '{1e9}', now())",
)


@dataclass(frozen=True)
class Hardened:
    """The server of the page, and where its names lead in this test."""

    admin: str
    port: str
    authority: Path

    def here(self, text: str) -> str:
        return text.replace("db.example:5432", f"127.0.0.1:{self.port}").replace(
            "/etc/shop/ca.pem", str(self.authority)
        )

    def address(self, role: str, password: str, scheme: str = "postgresql") -> str:
        address = self.here(ADDRESS.strip()).replace("shop_worker:second-password", f"{role}:{password}")
        return address.replace("postgresql://", f"{scheme}://")


@pytest.fixture(scope="module")
def hardened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hardened]:
    if shutil.which("openssl") is None:
        servers.install("openssl")  # the page's own command makes the certificates
    folder = tmp_path_factory.mktemp("certificates")
    certify(folder)
    with servers.private_postgres() as server:
        turn_on_tls(server.dsn, folder)
        port = server.dsn.rpartition(":")[2].partition("/")[0]
        hardened = Hardened(server.dsn.rpartition("/")[0] + "/shop", port, folder / "ca.pem")
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
        with psycopg.connect(hardened.admin, autocommit=True) as connection:
            connection.execute(ROLES.encode())
        migrate(hardened)
        with psycopg.connect(hardened.address("shop_owner", "first-password"), autocommit=True) as connection:
            connection.execute(RIGHTS.encode())
            connection.execute(POLICIES.encode())
        yield hardened


def certify(folder: Path) -> None:
    """A certificate for 127.0.0.1, signed by itself: it is its own authority."""
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -keyout server.key -out ca.pem -subj /CN=127.0.0.1 -addext"
    command = ["openssl", *words.split(), "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def turn_on_tls(admin: str, folder: Path) -> None:
    with psycopg.connect(admin, autocommit=True) as connection:
        shown = [connection.execute(f"SHOW {name}".encode()).fetchone() for name in ("data_directory", "hba_file")]
        data, rules = [Path(row[0]) for row in shown if row is not None]
        for name in ("server.key", "ca.pem"):
            shutil.copy(folder / name, data / name)
            owner = data.stat()
            os.chown(data / name, owner.st_uid, owner.st_gid)
            (data / name).chmod(0o600)
        rules.write_text(f"host all postgres samenet trust\n{HBA}")
        for setting, value in (("ssl_key_file", "server.key"), ("ssl_cert_file", "ca.pem"), ("ssl", "on")):
            connection.execute(f"ALTER SYSTEM SET {setting} = '{value}'".encode())
        connection.execute("SELECT pg_reload_conf()")
        until(lambda: connection.execute("SHOW ssl").fetchone() == ("on",))


def migrate(hardened: Hardened) -> None:
    command = hardened.here(MIGRATE).replace("onward migrate", f"{sys.executable} -m onward migrate")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("scheme", ["postgresql+asyncpg", "postgresql+psycopg"])
@pytest.mark.parametrize("guardian", get_args(GuardianKind))
async def test_a_worker_does_all_it_does_with_these_rights(
    hardened: Hardened, scheme: str, guardian: GuardianKind
) -> None:
    app = Onward(hardened.address("shop_worker", "second-password", scheme), jobs=JOBS, migrate=True)
    async with app, app.worker(concurrency=4, guardian=guardian, lease=LEASE):
        chain = await app.start(
            whole, None, blockers=[part.with_input(2), part.with_input(3)], deduplication=Deduplication("worker")
        )
        assert await chain.wait(timeout=SOON) == 5
        assert await (await app.start(plain, 7)).wait(timeout=SOON) == 7
        failed = await app.start(broken, 1)
        with pytest.raises(ChainFailed):
            await failed.wait(timeout=SOON)
        await app.pause(broken)
        await app.retry(failed)
        await app.trigger(failed)
        await app.cancel(failed)
        await app.resume(broken)
        assert len(await app.jobs()) >= 4
        await app.delete(chain, cascade=True)


@pytest.mark.parametrize("scheme", ["postgresql+asyncpg", "postgresql+psycopg"])
async def test_a_worker_keeps_a_history_and_a_starter_looks_at_it_and_can_drop_nothing(
    hardened: Hardened, scheme: str
) -> None:
    year = Retention(completed=timedelta(days=1), failed=timedelta(days=1), history=timedelta(days=365))
    app = Onward(hardened.address("shop_worker", "second-password", scheme), jobs=JOBS, retention=year)
    starter = Onward(hardened.address("shop_starter", "third-password", scheme), jobs=JOBS)
    async with app, starter:
        async with app.worker():
            chain = await app.start(part, 1)
            await chain.wait(timeout=SOON)
        assert await app.prune(part, older_than=timedelta()) >= 1
        with psycopg.connect(hardened.address("shop_starter", "third-password"), autocommit=True) as connection:
            for refused in HISTORY_BY_HAND:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(refused.encode())
            connection.execute("SELECT onward.make_history_parts(), onward.drop_history_parts()")  # nobody has asked
        assert chain.id in [found.id async for found in starter.history(types=[part])]

        app.state.clock = ClockOf(lambda: datetime.now(UTC) + timedelta(days=500))
        assert app.state.history is not None
        async with app.driver.reserved() as reserved:
            assert await reserved.run(app.state.history.drop()) is not None
        assert list(await starter.history()) == []


@pytest.mark.parametrize("scheme", ["postgresql+asyncpg", "postgresql+psycopg"])
async def test_a_starter_starts_and_looks_and_does_no_more(hardened: Hardened, scheme: str) -> None:
    worker = Onward(hardened.address("shop_worker", "second-password"), jobs=JOBS)
    starter = Onward(hardened.address("shop_starter", "third-password", scheme), jobs=JOBS, migrate=True)
    async with worker, starter:
        existing = await starter.start(part, 1)
        chains = await starter.start_many([part.with_input(2), plain.with_input(3), limited.with_input(4)])
        once = await starter.start(part, 4, deduplication=Deduplication("starter"))
        again = await starter.start(part, 5, deduplication=Deduplication("starter", scope="any"))
        assert again.id == once.id
        for refused in forbidden(starter, existing):
            with pytest.raises(DatabaseError, match="permission denied"):
                await refused

        async with worker.worker(concurrency=4):
            assert await once.wait(timeout=SOON) == 4
            assert [await chain.wait(timeout=SOON) for chain in chains] == [2, 3, 4]
        assert await starter.find_chain(once.id) is not None
        assert len(await starter.jobs()) >= 4
        assert len(await starter.chains()) >= 4
        await worker.delete(*(chain.id for chain in (once, existing, *chains)), cascade=True)


def forbidden(app: Onward, chain: Any) -> Iterator[Awaitable[object]]:
    yield app.start(whole, None, blockers=[chain])
    yield app.cancel(chain)
    yield app.delete(chain)
    yield app.trigger(chain)
    yield app.pause(part)
    yield app.resume(part)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE onward.job",
        "DROP TABLE onward.history",
        "CREATE TABLE onward.other (id int)",
        "CREATE TABLE public.other (id int)",
        "CREATE FUNCTION public.jsonb_array_length(text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE SCHEMA other",
    ],
)
def test_neither_may_make_or_drop_anything(hardened: Hardened, statement: str) -> None:
    for role, password in (("shop_worker", "second-password"), ("shop_starter", "third-password")):
        with (
            psycopg.connect(hardened.address(role, password)) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute(statement.encode())


@pytest.mark.parametrize("statement", ["UPDATE onward.job SET status = 'completed'", "DELETE FROM onward.job"])
def test_a_starter_may_not_change_jobs_by_hand(hardened: Hardened, statement: str) -> None:
    with (
        psycopg.connect(hardened.address("shop_starter", "third-password")) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


@pytest.mark.parametrize(
    "forged",
    [
        {"chain_id": "victim", "chain_index": "1", "status": "'completed'", "output": "'7'"},
        {"chain_id": "victim", "chain_index": "1"},
        {"chain_id": "victim"},
        {"status": "'completed'", "output": "'7'", "chain_ended_at": "now()"},
        {"output": "'7'"},
        {"status": "'failed'", "chain_failed": "true"},
    ],
)
async def test_a_starter_may_not_write_what_workers_do(hardened: Hardened, forged: dict[str, str]) -> None:
    row = {"id": "made", "chain_id": "made", "root_id": "made", "chain_index": "0", "type_name": "'part'", "rank": "0"}
    row |= {"payload_version": "1", "status": "'pending'", "deferred": "false", "input": "'1'"}
    row |= {"created_at": "now()", "scheduled_at": "now()"}
    chosen = "(SELECT %s::uuid AS victim, gen_random_uuid() AS made) AS chosen"
    insert = "INSERT INTO onward.job ({}) SELECT {} FROM " + chosen
    starter = Onward(hardened.address("shop_starter", "third-password"), jobs=JOBS)
    async with starter:
        victim = await starter.start(part, 1)
    with psycopg.connect(hardened.address("shop_starter", "third-password")) as connection:
        connection.execute(insert.format(",".join(row), ",".join(row.values())).encode(), [victim.id])  # like start
        row |= forged
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            connection.execute(insert.format(",".join(row), ",".join(row.values())).encode(), [victim.id])
    with psycopg.connect(hardened.admin) as connection:
        connection.execute("DELETE FROM onward.job")


@pytest.mark.parametrize("scheme", ["postgresql+asyncpg", "postgresql+psycopg"])
async def test_nobody_is_let_in_without_tls_or_by_another_certificate(
    hardened: Hardened, scheme: str, tmp_path: Path
) -> None:
    certify(tmp_path)
    right = hardened.address("shop_worker", "second-password", scheme)
    plain_text = right.replace("sslmode=verify-full", "sslmode=disable")
    another = right.replace(str(hardened.authority), str(tmp_path / "ca.pem"))
    wrong = hardened.address("shop_worker", "wrong-password", scheme)
    for address in (plain_text, another, wrong):
        with pytest.raises(DatabaseError) as refused:
            async with Onward(address, jobs=JOBS):
                pass
        assert "-password" not in str(refused.value)


def test_the_files_of_sqlite_are_for_their_owner(tmp_path: Path) -> None:
    command = f'{UMASK}"{sys.executable}" -m onward migrate sqlite:///jobs.db'
    for name in ("new", "old"):
        (tmp_path / name).mkdir()

    subprocess.run(["sh", "-c", command], cwd=tmp_path / "new", check=True)
    (tmp_path / "old" / "jobs.db").touch(0o666)
    (tmp_path / "old" / "jobs.db-wal").touch(0o666)
    subprocess.run(["sh", "-c", CHMOD], cwd=tmp_path / "old", check=True)

    found = [path for name in ("new", "old") for path in (tmp_path / name).iterdir()]
    assert len(found) >= 3  # the first one may have cleared up behind itself
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}


def test_what_the_policy_refers_to_is_there() -> None:
    targets = re.findall(r"\]\(([^)#:]+)", (ROOT / "SECURITY.md").read_text())

    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_block_of_the_page_is_run() -> None:
    assert sorted(language for language, _ in BLOCKS) == ["shell"] * 3 + ["sql"] * 3 + ["text"] * 2
    assert PAGE.count("```") == 2 * len(BLOCKS)
