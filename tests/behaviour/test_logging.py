"""Log lines: one for each attempt that ended, handlers' own say whose they are, and none shows a secret."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import pytest

from onward import Attempt, Backoff, LogObserver, Next, Onward, Permanent, job
from onward.crypto import Secret
from onward.observe import events
from onward.observe.logs import AttemptFilter, JsonFormatter
from support import SOON, Recorder

logger = logging.getLogger("shop")


class Lines:
    """A log in memory, one JSON object a line."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        self.handler = logging.StreamHandler(self.text)
        self.handler.addFilter(AttemptFilter())
        self.handler.setFormatter(JsonFormatter())

    def of(self, name: str) -> list[dict[str, Any]]:
        told = [json.loads(line) for line in self.text.getvalue().splitlines()]
        return [line for line in told if line["logger"] == name or line.get("event") == name]


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines, loggers = Lines(), [logging.getLogger("onward"), logger]
    for each in loggers:
        each.addHandler(lines.handler)
        each.setLevel(logging.INFO)
    yield lines
    for each in loggers:
        each.removeHandler(lines.handler)
        each.setLevel(logging.NOTSET)


@dataclass
class Login:
    user: str
    password: Annotated[str, Secret]


@job("ship", internal=True)
def ship(attempt: Attempt[int]) -> int:
    logger.info("shipping %d", attempt.input)
    return attempt.input


@job("charge", continues_to=[ship])
async def charge(attempt: Attempt[int]) -> Next[int]:
    logger.info("charging", extra={"total": 40})
    return attempt.continue_with(ship, attempt.input)


@job("poison")
async def poison(attempt: Attempt[int]) -> int:
    raise Permanent("poison")


@job("login", max_attempts=1)
async def login(attempt: Attempt[Login]) -> int:
    logger.info("logging in with %s at postgresql://u:tops3cret@db/x", attempt.input)
    try:
        raise ValueError(attempt.input.password)
    except ValueError:
        logger.exception("no")
    logger.warning("extra", extra={"given": attempt.input.password})
    inside = {"raw": attempt.input.password.encode(), "at": ["amqp://u:tops3cret@mq"], "left": [1, None]}
    logger.warning("extras", extra={"login": attempt.input, "inside": inside, "count": 7})
    return 1


async def test_handlers_lines_say_whose_they_are_on_the_loop_and_in_threads(
    running: Any, lines: Lines, recorder: Recorder
) -> None:
    app: Onward = await running(charge, ship, observers=[recorder])
    logger.info("outside")
    chain = await app.start(charge, 7)
    assert await chain.wait(timeout=SOON) == 7
    ended = [await recorder.next(events.AttemptEnded, count=n) for n in (1, 2)]

    outside, *told = lines.of("shop")
    assert "job_id" not in outside
    assert [(line["message"], line["type_name"], line["attempt"]) for line in told] == [
        ("charging", "charge", 1),
        ("shipping 7", "ship", 1),
    ]
    assert told[0]["total"] == 40
    assert {line["chain_id"] for line in told} == {str(chain.id)}
    assert [line["job_id"] for line in told] == [str(event.job_id) for event in ended]
    assert {line["worker"] for line in told} == {event.worker for event in ended}


async def test_each_attempt_that_ends_is_one_line(running: Any, lines: Lines, recorder: Recorder) -> None:
    app: Onward = await running(charge, ship, poison, observers=[LogObserver(), recorder])

    await (await app.start(charge, 1)).wait(timeout=SOON)
    await app.start(poison, 1)
    await recorder.next(events.AttemptEnded, count=3)

    told = lines.of("AttemptEnded")
    assert [(line["type_name"], line["outcome"], line["attempt"], line["level"]) for line in told] == [
        ("charge", "continued", 1, "info"),
        ("ship", "completed", 1, "info"),
        ("poison", "failed", 1, "info"),
    ]
    assert all(0 <= line["waited"] < 60 and 0 <= line["ran"] < 60 for line in told)


async def test_every_way_to_end_has_its_word(running: Any, recorder: Recorder) -> None:
    @job("again")
    async def again(attempt: Attempt[int]) -> int:
        if attempt.number == 1:
            return attempt.reschedule()  # type: ignore[return-value]
        if attempt.number == 2:
            async with attempt.complete():
                return attempt.reschedule()  # type: ignore[return-value]
        if attempt.number == 3:
            raise ValueError("once more")
        async with attempt.complete():
            return attempt.number

    app: Onward = await running(again, worker={"backoff": Backoff(timedelta(0))})
    assert await (await app.start(again, 1)).wait(timeout=SOON) == 4
    await recorder.next(events.AttemptEnded, count=4)

    told = [event.outcome for event in recorder.of(events.AttemptEnded)]
    assert told == ["rescheduled", "rescheduled", "retrying", "completed"]


async def test_the_wait_begins_when_the_job_is_due(running: Any, opened: Any, recorder: Recorder) -> None:
    client: Onward = await opened(poison)
    await client.start(poison, 1)
    await client.start(poison, 2, delay=timedelta(seconds=1))
    await running(poison, worker={"poll": timedelta(seconds=0.1)})
    await recorder.next(events.AttemptEnded, count=2)

    first, second = recorder.of(events.AttemptEnded)
    assert first.waited > 0
    assert 0 <= second.waited < 1 + first.waited


async def test_a_cancelled_attempt_is_said_to_be(running: Any, recorder: Recorder) -> None:
    go = asyncio.Event()

    @job("held")
    async def held(attempt: Attempt[int]) -> int:
        await asyncio.shield(go.wait())
        return 1

    app: Onward = await running(held)
    chain = await app.start(held, 1)
    await recorder.next(events.AttemptStarted)
    await app.cancel(chain)
    ended = await recorder.next(events.AttemptEnded)

    assert ended.outcome == "cancelled"


async def test_no_secret_is_logged(running: Any, lines: Lines) -> None:
    app: Onward = await running(login)

    await (await app.start(login, Login("ada", "open sesame"))).wait(timeout=SOON)

    told = lines.of("shop")
    assert len(told) == 4
    assert "open sesame" not in lines.text.getvalue()
    assert "tops3cret" not in lines.text.getvalue()
    assert "ada" in told[0]["message"]
    assert "ValueError: ***" in told[1]["traceback"]
    assert told[2]["given"] == "***"
    assert told[3]["login"] == {"user": "ada", "password": "***"}
    assert told[3]["inside"] == {"raw": "***", "at": ["amqp://u:***@mq"], "left": [1, None]}
    assert told[3]["count"] == 7


async def test_tracebacks_begin_with_the_handler(running: Any, recorder: Recorder) -> None:
    @job("async", max_attempts=1)
    async def on_the_loop(attempt: Attempt[int]) -> int:
        raise ValueError("here")

    @job("sync", max_attempts=1)
    def in_thread(attempt: Attempt[int]) -> int:
        raise ValueError("here")

    @job("phase", max_attempts=1)
    async def in_phase(attempt: Attempt[int]) -> int:
        async with attempt.complete():
            raise ValueError("here")

    app: Onward = await running(on_the_loop, in_thread, in_phase)
    for kind in (on_the_loop, in_thread, in_phase):
        await app.start(kind, 1)
    await recorder.next(events.AttemptFailed, count=3)

    for event in recorder.of(events.AttemptFailed):
        first = event.error.traceback.splitlines()[1]
        assert __file__ in first, event.error.traceback


async def test_nothing_is_made_that_nobody_reads(running: Any) -> None:
    app: Onward = await running(charge, ship, observers=[LogObserver()])

    assert not app._observers.wants(events.AttemptEnded)
