"""Events: one for each fact, after its commit, and never a trouble to the caller."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from onward import Attempt, LogObserver, Next, Onward, job
from onward.observe import events
from proxy import proxied
from support import SOON, Recorder

ENDS = (events.AttemptCompleted, events.AttemptEnded)
"""Told by the worker, which may be before or after what others are told."""


@job("last", internal=True)
async def last(attempt: Attempt[int]) -> int:
    return attempt.input


@job("first", continues_to=[last])
async def first(attempt: Attempt[int]) -> Next[int]:
    return attempt.continue_with(last, attempt.input)


@job("after", blocked_by=[first])
async def after(attempt: Attempt[int]) -> int:
    return attempt.input


async def test_the_life_of_a_chain_is_told_in_order(running: Any, recorder: Recorder) -> None:
    app: Onward = await running(first, last, after)
    chain = await app.start(first, 1)
    blocked = await app.start(after, 2, blockers=[chain])
    await blocked.wait(timeout=SOON)
    await recorder.next(events.ChainCompleted, count=2)

    told = [
        type(event).__name__
        for event in recorder.events
        if getattr(event, "chain_id", None) == chain.id and not isinstance(event, ENDS)
    ]
    assert told == [
        "ChainStarted",
        "JobCreated",
        "AttemptStarted",
        "JobCompleted",
        "JobCreated",
        "AttemptStarted",
        "JobCompleted",
        "ChainCompleted",
    ]
    of_blocked = [type(event).__name__ for event in recorder.events if getattr(event, "chain_id", None) == blocked.id]
    assert "ChainCompleted" in of_blocked
    assert len(recorder.of(events.AttemptCompleted)) == 3


async def test_an_observer_that_fails_is_logged_and_goes_no_further(
    running: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def wants(self, kind: type[events.Event]) -> bool:
            return True

        def observe(self, event: events.Event) -> None:
            raise RuntimeError("broken observer")

    app: Onward = await running(first, last, observers=[Broken()])

    assert await (await app.start(first, 1)).wait(timeout=SOON) == 1

    assert "broken observer" in caplog.text


async def test_failures_are_logged_with_their_traceback(running: Any, caplog: pytest.LogCaptureFixture) -> None:
    @job("bad", max_attempts=1)
    async def bad(attempt: Attempt[int]) -> int:
        raise ValueError("look at me")

    app: Onward = await running(bad, observers=[LogObserver()])
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="look at me"):
        await (await app.start(bad, 1)).wait(timeout=SOON)

    failed = [record for record in caplog.records if "AttemptFailed" in record.message]
    assert len(failed) == 1
    assert 'raise ValueError("look at me")' in failed[0].message
    assert isinstance(failed[0].onward, events.AttemptFailed)  # type: ignore[attr-defined]


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
@pytest.mark.parametrize("guardian", ["thread", "process"])
async def test_an_outage_is_logged_when_it_begins_and_when_it_is_over(
    running: Any, target: str, recorder: Recorder, caplog: pytest.LogCaptureFixture, guardian: str
) -> None:
    go = asyncio.Event()

    @job("slow", lease=timedelta(seconds=6))
    async def slow(attempt: Attempt[int]) -> int:
        await go.wait()
        return attempt.number

    async with proxied(target) as (proxy, dsn):
        observers = [recorder, LogObserver()]
        app: Onward = await running(slow, target=dsn, observers=observers, worker={"guardian": guardian})
        chains = [await app.start(slow, n) for n in range(5)]
        await recorder.next(events.AttemptStarted, count=5)
        caplog.clear()

        proxy.cut()
        go.set()
        await recorder.next(events.StateError, count=8)
        proxy.mend()
        assert [await chain.wait(timeout=SOON) for chain in chains] == [1] * 5
        recovered = await recorder.next(events.StateRecovered)
        await recorder.next(events.NotifyRecovered)

        said = [record.message for record in caplog.records if record.name.startswith("onward")]
        assert [words.split()[0] for words in sorted(said)] == [
            "NotifyError",
            "NotifyRecovered",
            "StateError",
            "StateRecovered",
        ]
        assert not any("Traceback" in words for words in said)
        assert recovered.errors >= 8
