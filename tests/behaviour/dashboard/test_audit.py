"""Who did what is written down before it is done, and once more with what came of it; else it is not done."""

import asyncio
import json
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from browsing import Browser
from onward import JobType, Onward
from onward.client import bulk
from onward.dashboard import AuditFile, audit
from onward.dashboard.audit import Entry
from onward.errors import DatabaseUnavailable
from onward.model import JobStatus

charge = JobType("orders.charge", input=dict[str, int], output=dict[str, str])
LATER = timedelta(hours=1)


@pytest.fixture
def target(tmp_path: Path) -> str:
    """What is tried here has nothing to do with the database."""
    return f"sqlite:///{tmp_path}/onward.db"


@pytest.fixture
async def app(opened: Callable[..., Any]) -> Onward:
    found: Onward = await opened(charge)
    return found


def entry(**given: Any) -> Entry:
    some: dict[str, Any] = {"id": "1", "at": datetime.now(UTC), "who": "ada", "address": None, "action": "retry"}
    return Entry(**{**some, "what": "chain=1", "outcome": "asked", "words": "", **given})


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_a_file_has_a_line_for_what_is_asked_and_one_for_what_came_of_it(
    app: Onward, serve: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    browser: Browser = await serve(app, users={"ada": "x"}, audit=AuditFile(file))
    browser.client.auth = ("ada", "x")
    chains = [await app.start(charge, {"id": n}, delay=LATER) for n in range(30)]

    await browser.act("cancel", {"chain": [str(chain.id) for chain in chains]})
    await browser.client.post(
        "do/delete", data={"chain": "a\nb", "token": "no"}, headers={"origin": "http://localhost"}
    )

    asked, done, refused = lines(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (asked["outcome"], done["outcome"], refused["outcome"]) == ("asked", "done", "refused")
    assert asked["id"] == done["id"] != refused["id"]
    assert {one["who"] for one in (asked, done, refused)} == {"ada"}
    assert {one["address"] for one in (asked, done, refused)} == {"127.0.0.1"}
    assert asked["action"] == "cancel"
    assert asked["what"] == "chain=" + ",".join(str(chain.id) for chain in chains), "all of them, however many"
    assert datetime.fromisoformat(asked["at"]) <= datetime.fromisoformat(done["at"])
    assert done["words"] == "Cancelled 30 chains."
    assert "too old" in refused["words"]


async def test_lines_are_appended_also_where_the_file_was_moved_away(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text("{}\n")
    write = AuditFile(file)

    await write(entry(words="one\ntwo"))
    assert [one.get("words") for one in lines(file)] == [None, "one\ntwo"]

    file.rename(tmp_path / "audit.1")
    await write(entry())
    assert len(lines(file)) == 1


async def test_a_line_that_was_cut_short_does_not_spoil_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole = tmp_path / "audit.jsonl", os.write
    write = AuditFile(file)

    monkeypatch.setattr(audit.os, "write", lambda number, data: whole(number, data[:7]))
    with pytest.raises(OSError, match="only 7 of"):
        await write(entry())
    monkeypatch.setattr(audit.os, "write", whole)
    await write(entry(words="after"))

    first, second = file.read_text().splitlines()
    assert len(first) == 7
    assert json.loads(second)["words"] == "after"


@pytest.mark.parametrize("where", ["/dev/full", "missing/audit.jsonl"])
async def test_what_cannot_be_written_down_is_not_done(
    app: Onward, serve: Callable[..., Any], tmp_path: Path, where: str
) -> None:
    chain = await app.start(charge, {"id": 1}, delay=LATER)
    browser: Browser = await serve(app, audit=AuditFile(tmp_path / where))

    told = await browser.act("cancel", {"chain": str(chain.id)}, status=503)

    assert "Nothing was done: the audit log cannot be written" in told
    found = await app.find_chain(chain.id)
    assert found is not None
    assert found.status is JobStatus.PENDING


async def test_a_pipe_that_nobody_reads_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    write = AuditFile(pipe)
    # Whoever waits for a reader is let go in the end, so that this fails rather than hangs.
    late = threading.Timer(2.0, lambda: os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)))
    late.start()

    with pytest.raises(OSError, match="No such device"):
        write.check()
    with pytest.raises(OSError, match="No such device"):
        await write(entry())

    late.cancel()
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    await write(entry(words="read"))
    assert json.loads(os.read(reader, 10_000))["words"] == "read"
    os.close(reader)


@pytest.mark.parametrize("outcome", ["asked", "done"])
async def test_a_hook_that_fails_stops_what_is_not_done_yet_and_is_told_otherwise(
    app: Onward, serve: Callable[..., Any], outcome: str
) -> None:
    async def hook(entry: Entry) -> None:
        if entry.outcome == outcome:
            raise RuntimeError("secret of the hook")

    chain = await app.start(charge, {"id": 1}, delay=LATER)
    browser: Browser = await serve(app, audit=hook)

    told = await browser.act("cancel", {"chain": str(chain.id)}, status=503 if outcome == "asked" else 200)

    found = await app.find_chain(chain.id)
    assert found is not None
    assert found.status is (JobStatus.PENDING if outcome == "asked" else JobStatus.FAILED)
    assert "secret" not in told
    if outcome == "done":
        assert "Cancelled 1 chain. What came of it could not be written to the audit log (RuntimeError)." in told


@pytest.mark.parametrize("error", [DatabaseUnavailable("gone", doing="cancel"), asyncio.CancelledError()])
async def test_what_fails_half_way_says_how_far_it_came(
    app: Onward, serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    file, cancel, count = tmp_path / "audit.jsonl", app.cancel, 0

    async def fragile(*ids: Any, **options: Any) -> int:
        nonlocal count
        count += 1
        if count > 2:
            raise error
        return await cancel(*ids, **options)

    monkeypatch.setattr(bulk, "BATCH", 1)
    monkeypatch.setattr(app, "cancel", fragile)
    chains = [await app.start(charge, {"id": n}, delay=LATER) for n in range(4)]
    browser: Browser = await serve(app, audit=AuditFile(file))

    try:
        await browser.act("cancel", {"chain": [str(chain.id) for chain in chains]}, status=503)
    except asyncio.CancelledError:
        assert isinstance(error, asyncio.CancelledError)

    asked, failed = lines(file)
    assert (asked["outcome"], failed["outcome"]) == ("asked", "failed")
    assert failed["words"].endswith(" Before that, 2 had been seen to.")


@pytest.mark.parametrize("begun", ["asked", "failed"])
async def test_whoever_is_cancelled_again_and_again_leaves_an_outcome(
    app: Onward, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    written: list[Entry] = []
    writes = asyncio.Event()

    async def hook(entry: Entry) -> None:
        if entry.outcome == begun:
            writes.set()
        await asyncio.sleep(0.1)
        written.append(entry)

    chain = await app.start(charge, {"id": 1}, delay=LATER)
    browser: Browser = await serve(app, audit=hook)
    if begun == "failed":
        monkeypatch.setattr(type(app), "cancel", _gone)
    async with asyncio.TaskGroup() as tasks:
        acting = tasks.create_task(browser.act("cancel", {"chain": str(chain.id)}))
        await writes.wait()
        for _ in range(3):  # as a host does that runs its middleware in a group of tasks
            acting.cancel()
            await asyncio.sleep(0)

    assert [one.outcome for one in written] == ["asked", "failed"]
    found = await app.find_chain(chain.id)
    assert found is not None
    assert found.status is JobStatus.PENDING


async def _gone(*_: Any, **__: Any) -> Any:
    raise asyncio.CancelledError


async def test_a_hook_that_hangs_counts_as_one_that_cannot_write(
    app: Onward, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hook(entry: Entry) -> None:
        await asyncio.sleep(3)

    monkeypatch.setattr(audit, "_PATIENCE", 0.05, raising=False)
    chain = await app.start(charge, {"id": 1}, delay=LATER)
    browser: Browser = await serve(app, audit=hook)

    told = await browser.act("cancel", {"chain": str(chain.id)}, status=503)

    assert "the audit log cannot be written (TimeoutError)" in told


async def test_a_form_that_is_not_ours_has_no_room_in_the_log(app: Onward, serve: Callable[..., Any]) -> None:
    written: list[Entry] = []
    browser: Browser = await serve(app, audit=written.append)

    answer = await browser.client.post(
        "do/cancel", data={"chain": "x" * 9_000, "token": "no"}, headers={"origin": "http://elsewhere"}
    )

    assert answer.status_code == 403
    assert [(one.outcome, len(one.what) < 300) for one in written] == [("refused", True)]


async def test_a_form_that_breaks_off_is_refused_without_a_traceback(
    app: Onward, serve: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    written: list[Entry] = []
    browser: Browser = await serve(app, audit=written.append)

    async def parts() -> AsyncIterator[bytes]:
        yield b"chain="
        raise ClientDisconnect  # as the server tells it

    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = await browser.client.post("do/cancel", content=parts(), headers=form)

    assert answer.status_code == 400
    assert [one.outcome for one in written] == ["refused"]
    assert "could not answer" not in caplog.text
