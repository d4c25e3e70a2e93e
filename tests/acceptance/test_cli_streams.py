"""What commands do at a terminal, in a pipe, and where nothing can be written."""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import until
from onward import JobType, Onward, SyncOnward
from support import SOON

greet = JobType("greet", input=str, output=str)


@pytest.fixture
def client(target: str, schema: str) -> Iterator[SyncOnward]:
    with Onward(target, jobs=[greet], schema=schema, migrate=True).sync as client:
        client.start(greet, "gr\u00fc\u00dfe \u2192")
        yield client


@pytest.fixture
def environment(client: SyncOnward, target: str, schema: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("ONWARD_")}
    return {**own, "ONWARD_DATABASE": target, "ONWARD_SCHEMA": schema}


def run(line: str, environment: dict[str, str], **variables: str) -> "subprocess.CompletedProcess[bytes]":
    """A line of the shell in which `onward` is the command."""
    script = f'onward() {{ "{sys.executable}" -m onward "$@"; }}\n{line}'
    return subprocess.run(["bash", "-c", script], env={**environment, **variables}, capture_output=True, check=False)


def at_terminal(command: list[str], environment: dict[str, str], output: Path, **variables: str) -> str:
    """What a command writes to a terminal."""
    terminal, screen = pty.openpty()
    with output.open("wb") as said:
        copying = subprocess.Popen(["cat"], stdin=terminal, stdout=said, stderr=subprocess.DEVNULL)
        done = subprocess.run(
            [sys.executable, "-m", "onward", *command],
            env={**environment, "TERM": "xterm", **variables}, stdin=screen, stdout=screen, stderr=screen, check=True,
        )  # fmt: skip
    os.close(screen)  # the last one: now there is nothing more to copy
    copying.wait(SOON.total_seconds())
    os.close(terminal)
    assert done.returncode == 0
    return output.read_text()


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_there_are_colours_and_bars_at_a_terminal_alone(environment: dict[str, str], tmp_path: Path) -> None:
    listed = ["jobs", "list"]

    coloured = at_terminal(listed, environment, tmp_path / "coloured")
    plain = at_terminal(listed, environment, tmp_path / "plain", NO_COLOR="1")
    changed = at_terminal(["cancel", "--all", "--yes"], environment, tmp_path / "changed")

    assert "\x1b[36mpending\x1b[0m" in coloured
    assert "pending" in plain
    assert not re.search(r"\x1b\[[\d;]*3\dm", plain)
    assert "\u2501" in changed  # of a bar
    assert "cancelled 1 chain" in changed
    for command in ("jobs list", "retry --all --yes"):
        ended = run(f"onward {command}", environment)
        assert b"\x1b" not in ended.stdout + ended.stderr
        assert "\u2501".encode() not in ended.stderr


@pytest.mark.parametrize("command", [["cancel", "--all"], ["prune", "greet", "--older-than", "0s"]])
def test_an_interrupted_question_ends_the_command_at_once_and_changes_nothing(
    command: list[str], environment: dict[str, str], client: SyncOnward, tmp_path: Path
) -> None:
    if command[0] == "prune":
        client.cancel(*(client.chain(greet, chain.id) for chain in client.all_chains()))
    before, said = [chain.status for chain in client.all_chains()], tmp_path / "said"
    terminal, keyboard = pty.openpty()
    with said.open("wb") as output:
        asking = subprocess.Popen(
            [sys.executable, "-m", "onward", *command], env=environment, stdin=keyboard, stdout=output, stderr=output
        )
    try:
        until(lambda: "[y/N]" in said.read_text(), or_else=said.read_text)

        asking.send_signal(signal.SIGINT)

        assert asking.wait(SOON.total_seconds()) == 130
        assert said.read_text() == f"{command[0]} 1 chain? [y/N]: "
        assert [chain.status for chain in client.all_chains()] == before
    finally:
        asking.kill()
        asking.wait()
        os.close(terminal)
        os.close(keyboard)


HANGS = """
import os
import time
from onward import Attempt, Onward, SyncTransaction, job

@job("greet")
def greet(attempt: Attempt[str, SyncTransaction]) -> str:
    with attempt.complete() as tx:
        tx.execute("create table written (id integer)")
        open("begun", "w").close()
        time.sleep(600)
        return ""

app = Onward(os.environ["ONWARD_DATABASE"], jobs=[greet], schema=os.environ["ONWARD_SCHEMA"])
"""


def test_a_rehearsal_in_a_thread_is_ended_by_ctrl_c_and_keeps_nothing(
    environment: dict[str, str], client: SyncOnward, tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    [chain] = client.all_chains()
    command = [sys.executable, "-m", "onward", "run", str(chain.id), "--dry", "--app", "hangs:app"]
    hanging = subprocess.Popen(command, env=environment, cwd=tmp_path)
    try:
        until((tmp_path / "begun").exists)

        hanging.send_signal(signal.SIGINT)

        assert hanging.wait(SOON.total_seconds()) == 130
    finally:
        hanging.kill()
        hanging.wait()
    with client.transaction() as tx:
        tx.execute("create table written (id integer)")  # nobody has


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_a_reader_that_has_enough_ends_a_command_without_a_word(environment: dict[str, str]) -> None:
    ended = run("onward status --watch --every 100ms --json | head -n 1", environment)

    assert (ended.stdout.count(b"\n"), ended.stderr) == (1, b"")


FULL = b"onward: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("command", ["jobs list", "jobs list --json", "migrate sqlite:///no.db --sql", "--version"])
@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such file here")
def test_a_disk_that_is_full_is_said_on_one_line(environment: dict[str, str], command: str) -> None:
    ended = run(f"onward {command} > /dev/full", environment)

    assert ended.returncode == 1
    assert ended.stderr == FULL


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such file here")
def test_so_are_figures_that_cannot_be_written(environment: dict[str, str], tmp_path: Path) -> None:
    ended = run(f"onward bench sqlite:///{tmp_path}/none.db --count 1 > /dev/full", environment)

    assert ended.returncode == 1
    assert ended.stderr.endswith(FULL)


def test_closed_streams_do_no_harm(environment: dict[str, str]) -> None:
    ended = run("onward jobs list >&-; echo $?; onward jobs list --type none 2>&- <&-; echo $?", environment)

    assert (ended.stdout.split(), ended.stderr) == ([b"0", b"0"], b"")


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_what_an_encoding_does_not_have_is_replaced_and_json_is_in_utf_8(environment: dict[str, str]) -> None:
    listed = run("onward jobs list --payloads --json", environment, PYTHONIOENCODING="ascii")
    shown = run(
        "onward chains show $(onward jobs list | tail -n 1 | cut -d' ' -f1) --payloads",
        environment,
        PYTHONIOENCODING="ascii",
    )

    assert "gr\u00fc\u00dfe \u2192" in listed.stdout.decode()
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"gr??e ?" in shown.stdout
