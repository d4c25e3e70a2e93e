"""Versions of payloads: what old code stored, new code reads, inputs and outputs alike."""

import sys
from dataclasses import dataclass
from typing import Any

import pytest

from onward import Attempt, ChainFailed, JobType, Onward, job
from onward.errors import PayloadError
from support import SOON


@dataclass
class Old:
    cents: int


@dataclass
class New:
    euros: int


@job("source")
async def old_source(attempt: Attempt[int]) -> Old:
    return Old(attempt.input * 100)


@job("sink", blocked_by=[old_source])
async def old_sink(attempt: Attempt[int]) -> int:
    return 0


def new_types(*, upcast: bool) -> tuple[JobType[int, New], JobType[int, int]]:
    @job("source", version=2)
    async def source(attempt: Attempt[int]) -> New:
        return New(attempt.input)

    @source.upcast(1)
    def input_of_version_1(plain: int) -> int:
        return plain

    @job("sink", blocked_by=[source], max_attempts=1)
    async def sink(attempt: Attempt[int]) -> int:
        return sum(output.euros for output in attempt.outputs_of(source))

    if upcast:

        @source.upcast_output(1)
        def output_of_version_1(plain: dict[str, int]) -> dict[str, int]:
            return {"euros": plain["cents"] // 100}

    return source, sink


async def test_an_old_output_is_brought_up_for_all_who_read_it(opened: Any, running: Any) -> None:
    before: Onward = await opened(old_source, old_sink)
    old = await before.start(old_source, 3)
    async with before.worker(jobs=[old_source]):
        assert await old.wait(timeout=SOON) == Old(300)
    waiting = await before.start(old_sink, 1, blockers=[old])
    source, sink = new_types(upcast=True)

    after: Onward = await running(source, sink)

    assert await after.chain(source, old.id).wait(timeout=SOON) == New(3)
    assert await after.chain(sink, waiting.id).wait(timeout=SOON) == 3


async def test_an_old_job_that_new_code_completed_has_an_output_of_the_new_version(opened: Any, running: Any) -> None:
    before: Onward = await opened(old_source, old_sink)
    old = await before.start(old_source, 3)
    waiting = await before.start(old_sink, 1, blockers=[old])
    source, sink = new_types(upcast=True)

    after: Onward = await running(source, sink)

    assert await after.chain(source, old.id).wait(timeout=SOON) == New(3), "not brought up twice"
    assert await after.chain(sink, waiting.id).wait(timeout=SOON) == 3
    assert (await old.get()).current.payload_version == 2


async def test_the_same_holds_for_a_phase_and_without_a_worker(opened: Any, running: Any) -> None:
    before: Onward = await opened(old_source)
    by_hand, by_worker = await before.start(old_source, 3), await before.start(old_source, 4)

    @job("source", version=2)
    async def source(attempt: Attempt[int]) -> New:
        async with attempt.complete():
            return New(attempt.input)

    source.upcast(1)(lambda plain: plain)
    source.upcast_output(1)(lambda plain: {"euros": plain["cents"] // 100})

    async with (await opened(source)).complete(by_hand.id) as completion:
        await completion.done(New(3))
    after: Onward = await running(source)

    assert await after.chain(source, by_hand.id).wait(timeout=SOON) == New(3)
    assert await after.chain(source, by_worker.id).wait(timeout=SOON) == New(4)


async def test_an_old_output_that_does_not_fit_says_what_to_register(opened: Any, running: Any) -> None:
    before: Onward = await opened(old_source, old_sink)
    old = await before.start(old_source, 3)
    async with before.worker(jobs=[old_source]):
        await old.wait(timeout=SOON)
    waiting = await before.start(old_sink, 1, blockers=[old])
    source, sink = new_types(upcast=False)

    after: Onward = await running(source, sink)

    advice = r"it is of version 1: register how it comes up with @….upcast_output\(1\)"
    with pytest.raises(PayloadError, match=advice):
        await after.chain(source, old.id).wait(timeout=SOON)
    with pytest.raises(ChainFailed, match=advice):
        await after.chain(sink, waiting.id).wait(timeout=SOON)


@pytest.mark.parametrize("timeout", [SOON, None])
async def test_an_upcaster_that_wants_to_end_the_program_fails_at_one_payload_only(
    opened: Any, running: Any, timeout: Any
) -> None:
    before: Onward = await opened(old_source, old_sink)
    done, left = await before.start(old_source, 3), await before.start(old_source, 4)
    async with before.complete(done) as completion:
        await completion.done(Old(300))

    def leave(plain: Any) -> Any:
        sys.exit("nothing to see here")

    @job("source", version=2, max_attempts=1)
    async def source(attempt: Attempt[int]) -> New:
        return New(attempt.input)

    source.upcast(1)(leave)
    source.upcast_output(1)(leave)
    after: Onward = await opened(source)

    with pytest.raises(PayloadError, match="output of job type 'source': its upcaster raised SystemExit: nothing"):
        await after.chain(source, done.id).wait(timeout=timeout)
    async with after.complete(after.chain(source, left.id)) as completion:
        with pytest.raises(PayloadError, match="input of job type 'source': its upcaster raised SystemExit: nothing"):
            completion.input  # noqa: B018 - read for what it raises
    async with after.worker():
        with pytest.raises(ChainFailed, match="SystemExit"):
            await after.chain(source, left.id).wait(timeout=SOON)
        assert await (await after.start(source, 5)).wait(timeout=SOON) == New(5)


async def test_an_old_input_that_nobody_brings_up_says_what_to_register(opened: Any) -> None:
    before: Onward = await opened(old_source)
    old = await before.start(old_source, 3)

    @job("source", version=2)
    async def source(attempt: Attempt[int]) -> New: ...

    async with (await opened(source)).complete(old.id) as completion:
        with pytest.raises(PayloadError, match=r"it is of version 1: register how it comes up with @….upcast\(1\)"):
            completion.input  # noqa: B018 - read for what it raises


async def test_an_old_output_that_fits_needs_nothing(opened: Any) -> None:
    before: Onward = await opened(old_source)
    old = await before.start(old_source, 3)
    async with before.worker():
        await old.wait(timeout=SOON)
    same = JobType("source", input=int, output=Old, version=2)

    after: Onward = await opened(same)

    assert await after.chain(same, old.id).wait(timeout=SOON) == Old(300)
