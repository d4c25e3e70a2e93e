"""`executor="process"`: input in, outcome out, and a process that can be killed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onward import Attempt, Chain, ChainFailed, ChainHandle, JobStatus, Onward, Progress, Slice, SyncTransaction, job
from onward.errors import DefinitionError, HandlerFailed
from onward.observe import events
from programs import cpu_jobs
from programs.cpu_jobs import Frame, Rendered
from support import SOON, Recorder

LONG = timedelta(seconds=30)
"""A process has to start, and machines are busy."""


async def failure_of(chain: ChainHandle[Any]) -> ChainFailed:
    with pytest.raises(ChainFailed) as failed:
        await chain.wait(timeout=LONG)
    assert failed.value.error is not None
    return failed.value


async def pid_said(chain: ChainHandle[Any]) -> int:
    """The process that runs the handler, which says so as its progress."""
    async with asyncio.timeout(LONG.total_seconds()):
        while (progress := (await chain.get()).current.progress) is None:
            await asyncio.sleep(0.02)
    assert progress.note is not None
    return int(progress.note)


async def gone(pid: int) -> None:
    """Wait for a process to be no more; a zombie counts as gone, since somebody else may be its parent by now."""
    async with asyncio.timeout(SOON.total_seconds()):
        while is_running(pid):
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


async def test_the_output_comes_back_from_another_process(running: Any) -> None:
    app: Onward = await running(cpu_jobs.render, cpu_jobs.describe)

    rendered = await app.start(cpu_jobs.render, Frame(7))
    described = await app.start(cpu_jobs.describe, "me")

    result = await rendered.wait(timeout=LONG)
    assert (result.frame, result.pid != os.getpid()) == (7, True)
    me = str(described.id)
    assert await described.wait(timeout=LONG) == [me, me, me, "describe", 1, 0, None, None]


async def test_processes_are_reused_and_end_with_the_worker(opened: Any) -> None:
    app: Onward = await opened(cpu_jobs.render)
    chains = await app.start_many([cpu_jobs.render.with_input(Frame(n)) for n in range(6)])

    async with app.worker(concurrency=1):
        results: list[Rendered] = [await chain.wait(timeout=LONG) for chain in chains]
        assert is_running(results[0].pid)

    assert [result.frame for result in results] == list(range(6))
    assert len({result.pid for result in results}) == 1
    assert not is_running(results[0].pid)


async def test_a_chain_continues_loops_and_branches_out_of_a_process(running: Any) -> None:
    app: Onward = await running(cpu_jobs.branch, cpu_jobs.publish, cpu_jobs.weigh)

    long, short = await app.start(cpu_jobs.branch, 3), await app.start(cpu_jobs.branch, 0)

    assert await long.wait(timeout=LONG) == "frame 7, priority []"
    assert await short.wait(timeout=LONG) == "nothing"


async def test_a_continuation_may_start_blockers_and_read_their_outputs(running: Any) -> None:
    app: Onward = await running(cpu_jobs.split, cpu_jobs.sum_up, cpu_jobs.weigh)

    chain = await app.start(cpu_jobs.split, [1, 2, 3])

    assert await chain.wait(timeout=LONG) == 1012


async def test_an_undeclared_step_is_refused_as_anywhere(running: Any) -> None:
    app: Onward = await running(cpu_jobs.wrong_turn, cpu_jobs.branch, cpu_jobs.publish, cpu_jobs.weigh)

    failed = await failure_of(await app.start(cpu_jobs.wrong_turn, 1))

    assert failed.error is not None
    assert "'wrong turn' does not declare 'branch'" in failed.error.message


@pytest.mark.parametrize("how", ["raise", "return"])
async def test_a_handler_may_reschedule_itself_without_counting(running: Any, how: str) -> None:
    app: Onward = await running(cpu_jobs.later)

    chain = await app.start(cpu_jobs.later, how)

    assert await chain.wait(timeout=LONG) == "attempt 2, 0 failures"


async def test_a_permanent_error_fails_at_once(running: Any) -> None:
    app: Onward = await running(cpu_jobs.stolen)
    chain = await app.start(cpu_jobs.stolen, 1)

    failed = await failure_of(chain)

    assert failed.error is not None
    assert (failed.reason, failed.error.type, failed.error.message) == ("permanent", "Permanent", "card stolen")


async def test_an_error_is_kept_with_the_traceback_of_the_process(running: Any, recorder: Recorder) -> None:
    app: Onward = await running(cpu_jobs.broken)
    chain = await app.start(cpu_jobs.broken, 1)

    failed = await failure_of(chain)

    assert failed.error is not None
    assert (failed.reason, failed.error.type, failed.error.attempt) == ("attempts", "ZeroDivisionError", 2)
    assert "return dividend // divisor" in failed.error.traceback
    assert [event.error.type for event in recorder.of(events.AttemptFailed)] == ["ZeroDivisionError"] * 2


async def test_an_output_of_the_wrong_shape_is_a_failure_of_the_handler(running: Any) -> None:
    app: Onward = await running(cpu_jobs.liar)

    failed = await failure_of(await app.start(cpu_jobs.liar, 1))

    assert failed.error is not None
    assert "output of job type 'liar'" in failed.error.message


@pytest.mark.parametrize("call", ["prepare", "complete", "get"])
async def test_what_lives_in_the_worker_is_refused(running: Any, call: str) -> None:
    app: Onward = await running(cpu_jobs.phases)

    failed = await failure_of(await app.start(cpu_jobs.phases, call))

    assert failed.error is not None
    assert failed.error.type == "PhaseError"
    assert f"{call}(" in failed.error.message
    assert "executor=" in failed.error.message


async def test_computing_does_not_keep_the_loop_and_progress_is_seen_meanwhile(running: Any, tmp_path: Path) -> None:
    @job("double")
    async def double(attempt: Attempt[int]) -> int:
        return attempt.input * 2

    app: Onward = await running(cpu_jobs.busy, double)
    chain = await app.start(cpu_jobs.busy, str(tmp_path / "enough"))
    pid = await pid_said(chain)

    assert await (await app.start(double, 21)).wait(timeout=SOON) == 42
    assert (await chain.get()).status is JobStatus.RUNNING
    (tmp_path / "enough").touch()

    assert await chain.wait(timeout=LONG) > 0
    assert (await chain.get()).current.progress == Progress(0.5, str(pid))


async def test_a_timeout_kills_the_process_and_what_it_started(running: Any, tmp_path: Path) -> None:
    app: Onward = await running(cpu_jobs.busy_in_vain, cpu_jobs.render)

    failed = await failure_of(await app.start(cpu_jobs.busy_in_vain, str(tmp_path / "pids")))

    assert failed.error is not None
    assert (failed.reason, failed.error.type) == ("attempts", "TimeoutError")
    pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    for pid in pids:
        await gone(pid)
    assert (await (await app.start(cpu_jobs.render, Frame(1))).wait(timeout=LONG)).pid != pids[0]


async def test_cancelling_kills_the_process_and_fails_the_job(running: Any) -> None:
    app: Onward = await running(cpu_jobs.busy)
    chain = await app.start(cpu_jobs.busy, "/nowhere")
    pid = await pid_said(chain)

    await app.cancel(chain)

    assert (await failure_of(chain)).reason == "cancelled"
    await gone(pid)


async def test_a_deleted_job_takes_its_process_along(running: Any, recorder: Recorder) -> None:
    app: Onward = await running(cpu_jobs.busy)
    chain = await app.start(cpu_jobs.busy, "/nowhere")
    pid = await pid_said(chain)

    await app.delete(chain)

    await recorder.next(events.LeaseLost)
    await gone(pid)


async def test_after_the_grace_period_the_process_is_killed_and_its_job_given_back(opened: Any) -> None:
    app: Onward = await opened(cpu_jobs.busy)
    async with app.worker(grace=timedelta(0)):
        chain = await app.start(cpu_jobs.busy, "/nowhere")
        pid = await pid_said(chain)

    assert not is_running(pid)
    stored: Chain = await chain.get()
    assert (stored.status, stored.current.failures, stored.current.attempt) == (JobStatus.PENDING, 0, 1)


@pytest.mark.parametrize(
    ("how", "said"),
    [("exit", "exited with code 7"), ("sys.exit", "exited with code 8"), ("fault", "died with SIGSEGV")],
)
async def test_a_process_that_dies_fails_its_job_alone(running: Any, how: str, said: str) -> None:
    app: Onward = await running(cpu_jobs.exit_at_once, cpu_jobs.render, worker={"concurrency": 2})
    chain = await app.start(cpu_jobs.exit_at_once, how)
    others = await app.start_many([cpu_jobs.render.with_input(Frame(n)) for n in range(4)])

    failed = await failure_of(chain)

    assert failed.error is not None
    assert (failed.reason, failed.error.type) == ("attempts", "ProcessDied")
    assert said in failed.error.message
    assert (await chain.get()).current.failures == 2
    assert [(await other.wait(timeout=LONG)).frame for other in others] == [0, 1, 2, 3]


async def test_an_idle_process_that_was_killed_is_replaced(running: Any) -> None:
    app: Onward = await running(cpu_jobs.render, worker={"concurrency": 1})
    first = await (await app.start(cpu_jobs.render, Frame(1))).wait(timeout=LONG)

    os.kill(first.pid, signal.SIGKILL)
    await gone(first.pid)
    chain = await app.start(cpu_jobs.render, Frame(2))

    second = await chain.wait(timeout=LONG)
    assert second.pid != first.pid
    assert (await chain.get()).current.attempt == 1


async def test_functions_made_into_types_elsewhere_and_older_payloads_work_too(opened: Any, running: Any) -> None:
    @job("versioned")
    async def before(attempt: Attempt[int]) -> int:
        return attempt.input

    old: Onward = await opened(before)
    chain = await old.start(before, 21)

    app: Onward = await running(cpu_jobs.made, cpu_jobs.declared, cpu_jobs.versioned)

    assert await (await app.start(cpu_jobs.made, 1)).wait(timeout=LONG) == 2
    assert await (await app.start(cpu_jobs.declared, 2)).wait(timeout=LONG) == 3
    assert await chain.wait(timeout=LONG) == 42


async def test_middleware_surrounds_the_handler_in_the_worker(running: Any) -> None:
    seen: list[object] = []

    class Watching:
        @asynccontextmanager
        async def around_handler(self, attempt: Attempt[Any]) -> AsyncIterator[None]:
            seen.append(attempt.job_type)
            try:
                yield
            except HandlerFailed as failed:
                seen.append(failed.error.type)
                raise

    watched = Slice("watched", middleware=[Watching()])
    watched.job("broken", max_attempts=1, executor="process")(cpu_jobs.divide_by_zero)
    app: Onward = await running(watched)

    failed = await failure_of(await app.start(watched.steps[0], 1))  # type: ignore[arg-type]

    assert failed.reason == "attempts"
    assert seen == ["watched.broken", "ZeroDivisionError"]


# -- definitions


@contextmanager
def refused(*expected: str) -> Any:
    with pytest.raises(DefinitionError) as error:
        yield
    for text in expected:
        assert text in str(error.value)


def test_an_async_def_handler_is_refused() -> None:
    @job("waits", executor="process")
    async def waits(attempt: Attempt[int]) -> int:
        return attempt.input

    with refused('waits: executor="process" needs a def handler'):
        Onward("memory://", jobs=[waits])


def test_a_handler_that_cannot_be_imported_is_refused_when_the_worker_is_built() -> None:
    @job("nested", executor="process")
    def nested(attempt: Attempt[int]) -> int:
        return attempt.input

    @job("also nested", executor="process")
    def also_nested(attempt: Attempt[int, SyncTransaction]) -> int:
        return attempt.input

    app = Onward("memory://", jobs=[nested, also_nested])

    with refused("nested: ", "also nested: ", "inside a function: move it to the top level of a module"):
        app.worker()


def test_an_unknown_executor_is_refused() -> None:
    with refused("odd: executor='thread': use one of 'auto', 'process'"):
        job("odd", executor="thread")(cpu_jobs.divide_by_zero)  # type: ignore[call-overload]
