"""What is too large is refused with the cap's name before anything is sent; what handlers raise and say is cut."""

import asyncio
import traceback
from dataclasses import dataclass
from typing import Any

import pytest

from onward import Attempt, Onward, job
from onward.errors import ChainFailed, FlowPayloadError, QueueDataError, StartRefused
from onward.flow.starting import Starting
from onward.lifecycle.effects import describe
from onward.options import LONGEST_ERROR, LONGEST_NOTE, LONGEST_TRACEBACK, MOST_JOBS, cut
from onward.queue import ActiveJob, Queue, QueueWorker
from onward.queue.providers.bullmq import BullMQ
from onward.queue.providers.memory import Memory
from onward.queue.providers.redis import Redis
from support import SOON

MIB = 1024 * 1024
NOWHERE = "redis://127.0.0.1:1"


@job("work")
async def work(attempt: Attempt[str]) -> None:
    return None


@job("after", blocked_by=[work])
async def after(attempt: Attempt[None]) -> None:
    return None


@job("shout", max_attempts=1)
async def shout(attempt: Attempt[int]) -> None:
    attempt.progress(0.5, "n" * attempt.input)
    raise ValueError("x" * attempt.input)


@dataclass
class Item:
    name: str


async def test_a_call_starts_so_many_jobs_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Onward("memory://", jobs=[work, after]) as app:
        with pytest.raises(StartRefused, match=r"100,001 jobs in one call, more than the 100,000"):
            await app.start_many([work.with_input("")] * (MOST_JOBS + 1))
        one = await app.start(work, "")
        with pytest.raises(StartRefused, match="more than the 100,000"):
            await app.start(after, None, blockers=[one] * (MOST_JOBS + 1))
        with pytest.raises(StartRefused, match="more than the 100,000"):
            await app.start_many([after.with_input(None, blockers=[work.with_input("")] * 10)] * 20_000)
        for module in ("options", "lifecycle.start"):
            monkeypatch.setattr(f"onward.{module}.MOST_JSON", 2 * MIB)
        with pytest.raises(StartRefused, match=r"characters of JSON in one call, more than the 2,097,152"):
            await app.start_many([work.with_input("x" * (MIB // 2))] * 5)

        assert len(await app.jobs()) == 1


async def test_blockers_within_blockers_go_so_deep_and_no_deeper() -> None:
    chain: Any = work.with_input("")
    for _ in range(20_000):
        chain = after.with_input(None, blockers=[chain])

    async with Onward("memory://", jobs=[work, after]) as app:
        with pytest.raises(StartRefused, match="more than 100 levels deep"):
            await app.start_many([chain])


def test_a_flow_starts_so_many_jobs_in_a_call_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = Starting("access", "check", Item, has_priorities=False)
    options: Any = {"correlation_id": None, "delay": None, "priority": 0}

    with pytest.raises(FlowPayloadError, match="100,001 jobs in one call"):
        starting.jobs([Item("a")] * (MOST_JOBS + 1), **options)
    for module in ("options", "lifecycle.start"):
        monkeypatch.setattr(f"onward.{module}.MOST_JSON", 2 * MIB)
    with pytest.raises(FlowPayloadError, match="more than the 2,097,152"):
        starting.jobs([Item("a" * (MIB // 2))] * 6, **options)


@pytest.mark.parametrize(
    "make", [Memory, lambda **limit: Redis(NOWHERE, **limit), lambda **limit: BullMQ(NOWHERE, **limit)]
)
async def test_the_data_of_a_job_has_so_many_bytes_and_no_more(make: Any) -> None:
    for limit, size in (({}, 16 * MIB), ({"max_job_size": 1_000}, 1_000)):
        queue = Queue[str]("caps", provider=make(**limit))
        queue._connected_in = asyncio.get_running_loop()  # nobody is asked

        with pytest.raises(QueueDataError, match=rf"more than the limit of {size:,} \(max_job_size=\)"):
            await queue.add("x", "x" * size)


async def test_names_ids_and_calls_of_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Queue[Any]("bounded", provider=Memory()) as queue:
        for name, options in (("x" * 1001, {}), ("x", {"id": "x" * 1001})):
            with pytest.raises(QueueDataError, match="at most 1,000 characters, not 1,001"):
                await queue.add(name, 1, **options)  # type: ignore[arg-type]
        with pytest.raises(QueueDataError, match="100,001 jobs in one call"):
            await queue.add_many("x", [1] * (MOST_JOBS + 1))
        for module in ("options", "lifecycle.start"):
            monkeypatch.setattr(f"onward.{module}.MOST_JSON", 2 * MIB)
        with pytest.raises(QueueDataError, match=r"more than the 2,097,152"):
            await queue.add_many("x", ["x" * (MIB // 2)] * 6)

        assert (await queue.stats()).waiting == 0


async def test_what_a_queues_handler_raises_says_and_returns_is_cut() -> None:
    async def handle(data: int, job: ActiveJob[int]) -> str:
        job.report_progress(0.5, "n" * data)
        if job.name == "raise":
            raise ValueError("x" * data)
        return "r" * data

    provider = Memory()
    async with Queue[int]("cut", provider=provider) as queue, QueueWorker("cut", handle, provider=provider):
        raised, returned = await queue.add("raise", 20 * MIB), await queue.add("return", 20 * MIB)

        with pytest.raises(Exception, match="cut: 20,971,520 characters in all"):
            await queue.wait(raised.id, timeout=SOON)
        assert await queue.wait(returned.id, timeout=SOON) is None

        failed = await queue.get_job(raised.id)
        assert failed is not None
        assert failed.error is not None
        assert failed.progress is not None
        assert len(failed.error) == LONGEST_ERROR
        assert len(failed.progress.note or "") == LONGEST_NOTE


async def test_what_a_handler_raises_and_says_is_cut_and_says_so() -> None:
    async with Onward("memory://", jobs=[shout]) as app, app.worker():
        chain = await app.start(shout, 20 * MIB)
        with pytest.raises(ChainFailed) as failed:
            await chain.wait(timeout=SOON)

        error = failed.value.error
        assert error is not None
        stored = (await app.find_chain(chain.id)).current  # type: ignore[union-attr]
    assert len(error.message) == LONGEST_ERROR
    assert error.message.endswith("(cut: 20,971,520 characters in all)")
    assert len(error.traceback) <= LONGEST_TRACEBACK
    assert "cut: " in error.traceback
    assert stored.progress is not None
    assert (stored.progress.note or "").endswith("(cut: 20,971,520 characters in all)")


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - to be described
        return caught


def test_errors_are_told_at_no_great_length_whatever_they_hold() -> None:
    noted = raised(ValueError("short"))
    for number in range(5_000):
        noted.add_note(f"note {number} " + "n" * 5_000)
    caused = raised(RuntimeError("outer"))
    caused.__cause__ = raised(ValueError("c" * MIB))
    group = raised(ExceptionGroup("g" * MIB, [ValueError("m" * MIB) for _ in range(50)]))

    for error in (noted, caused, group):
        told = describe(error)
        assert len(told.message) <= LONGEST_ERROR
        assert len(told.traceback) <= LONGEST_TRACEBACK
        assert "cut: " in told.traceback


def test_short_texts_stay_as_they_are() -> None:
    error = raised(ValueError("short"))

    told = describe(error)

    assert told.message == "short"
    assert told.traceback == "".join(traceback.format_exception(error))
    assert cut("x" * 10, 10) == "x" * 10
