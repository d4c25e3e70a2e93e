"""A start whose answer was lost on its way: looked up, not doubled, and told to those who wait or watch."""

import sqlite3
from datetime import timedelta
from typing import Any

import pytest

from onward import Attempt, Next, Onward, job
from onward.observe import events
from support import SOON, Recorder, Run, intercept


@job("work")
async def work(attempt: Attempt[int]) -> int:
    return attempt.input


@job("after", blocked_by=[work])
async def after(attempt: Attempt[int]) -> list[int]:
    return attempt.outputs_of(work)


def lose_the_first_answer(app: Onward, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[bool] = []

    async def start(run: Run, *_: Any, **__: Any) -> Any:
        answer = await run()
        if not lost:
            lost.append(True)
            raise lost_answer(app)
        return answer

    intercept(monkeypatch, app.state, "start", start)


def lost_answer(app: Onward) -> Exception:
    if app.state.dialect == "postgres":
        return ConnectionResetError("the answer was lost")
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


async def test_a_start_that_went_through_is_told_to_workers_and_observers(
    running: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await running(work, worker={"poll": timedelta(minutes=10)})
    lose_the_first_answer(app, monkeypatch)

    chain = await app.start(work, 7)

    assert await chain.wait(timeout=SOON) == 7
    assert [event.chain_id for event in recorder.of(events.ChainStarted)] == [chain.id]
    assert [event.job_id for event in recorder.of(events.JobCreated)] == [chain.id]


async def test_so_are_the_blockers_that_were_started_with_it(
    opened: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await opened(work, after)
    lose_the_first_answer(app, monkeypatch)

    chain = await app.start(after, 1, blockers=[work.with_input(3), work.with_input(4)])

    blockers = [blocker.chain_id for blocker in await app.blockers_of(chain.id)]
    assert {event.chain_id for event in recorder.of(events.ChainStarted)} == {chain.id, *blockers}
    assert [event.job_id for event in recorder.of(events.JobBlocked)] == [chain.id]
    assert len(await app.jobs()) == 3


@job("last")
async def last(attempt: Attempt[int]) -> int:
    return attempt.input


@job("goes on", continues_to=[last])
async def goes_on(attempt: Attempt[int]) -> Next[int]:
    async with attempt.complete():
        await attempt.start(work, 1)
        return attempt.continue_with(last, attempt.input)


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
async def test_what_follows_from_a_phase_that_went_through_is_told(
    running: Any, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Onward = await running(goes_on, last, work, worker={"poll": timedelta(minutes=10)})
    lost: list[bool] = []

    async def settle(run: Run, *_: Any, **__: Any) -> Any:
        answer = await run()
        if not lost:
            lost.append(True)
            raise lost_answer(app)
        return answer

    intercept(monkeypatch, app.state, "settle", settle)

    chain = await app.start(goes_on, 7)

    assert await chain.wait(timeout=SOON) == 7
    await recorder.next(events.ChainCompleted, count=2)
    assert len(recorder.of(events.ChainStarted)) == 2
    assert [event.type_name for event in recorder.of(events.JobCompleted)].count("goes on") == 1
