"""`onward dashboard` as a process."""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from command import Command, until
from onward import JobType, Onward


@pytest.fixture
def shop(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path}/shop.db"
    kind = JobType("orders.charge", input=int, output=int)
    with Onward(address, jobs=[kind], observers=[]).sync as client:
        client.start(kind, 1234567)
    return address


@pytest.fixture
def onward(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts a command; what still runs at the end is killed, by its own id."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("ONWARD_")}
    with ExitStack() as stack:

        def start(*arguments: str) -> Command:
            command = Command(*arguments, folder=tmp_path, output=tmp_path, environment=own)
            stack.callback(command.process.wait)
            stack.callback(command.process.kill)
            return command

        yield start


def address_of(command: Command) -> str:
    command.says("Ctrl-C stops it.")
    found = re.search(r"http://\S+/", command.said)
    assert found is not None
    return found[0]


def test_it_serves_this_machine_without_actions_and_stops_though_somebody_looks(
    onward: Callable[..., Command], shop: str
) -> None:
    command = onward("dashboard", shop, "--port", "0")
    address = address_of(command)

    page = httpx.get(f"{address}chains")
    refused = httpx.post(f"{address}do/cancel", headers={"origin": address.rstrip("/")})
    with httpx.stream("GET", f"{address}live?at=/chains") as live:
        first = next(live.iter_lines())
        command.signal(signal.SIGTERM)
        assert command.exit_code == 0

    assert page.status_code == 200
    assert "orders.charge" in page.text
    assert "read-only" in page.text
    assert "1234567" not in page.text
    assert refused.status_code == 403
    assert first == "retry: 2000"
    assert "Traceback" not in command.said


def test_it_lets_in_who_knows_the_password_of_its_file(
    onward: Callable[..., Command], shop: str, tmp_path: Path
) -> None:
    (tmp_path / "password").write_text("s3cret\n")
    command = onward(
        "dashboard", shop, "--port", "0", "--host", "0.0.0.0", "--user", "ada", "--write",
        "--password-file", str(tmp_path / "password"),
    )  # fmt: skip
    address = address_of(command).replace("0.0.0.0", "127.0.0.1")

    assert httpx.get(address).status_code == 401
    assert httpx.get(f"{address}chains", auth=("ada", "s3cret")).status_code == 200
    command.signal(signal.SIGINT)
    assert command.exit_code == 0


def test_it_keeps_an_audit_log_and_does_not_begin_without_it(
    onward: Callable[..., Command], shop: str, tmp_path: Path
) -> None:
    command = onward("dashboard", shop, "--port", "0", "--write", "--audit-log", "audit.jsonl")
    address = address_of(command)
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600

    httpx.post(f"{address}do/cancel", headers={"origin": address.rstrip("/")}, data={"chain": "x"})
    command.signal(signal.SIGTERM)
    assert command.exit_code == 0
    refused = onward("dashboard", shop, "--port", "0", "--audit-log", "nowhere/audit.jsonl")

    entry = json.loads((tmp_path / "audit.jsonl").read_text())
    assert (entry["action"], entry["outcome"], entry["address"]) == ("cancel", "refused", "127.0.0.1")
    assert refused.exit_code == 1
    assert "--audit-log nowhere/audit.jsonl: cannot be written: No such file or directory" in refused.said


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_shop_of_the_demo_stays_open_beside_a_dashboard(onward: Callable[..., Command]) -> None:
    command = onward("demo", "--dashboard", "--port", "0")
    command.says("Ctrl-C closes it.", within=90)
    address = re.findall(r"http://\S+/", command.said)[-1]

    until(lambda: "orders.charge" in httpx.get(f"{address}jobs?status=running").text)
    command.signal(signal.SIGINT)

    assert command.exit_code == 0
    assert "Traceback" not in command.said
