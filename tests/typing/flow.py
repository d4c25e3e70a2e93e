"""What type checkers infer from flows, and refuse. Checked by mypy --strict and pyright, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedFunction=false

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from redis.asyncio import Redis

from onward.flow import FanOut, Flow, FlowEvent, FlowFailureReason, FlowJob, Goto, Keep, Positions, Run


@dataclass
class Request:
    user: str


@dataclass
class Checked:
    score: int


def note(event: FlowEvent) -> None: ...


flow = Flow("access", "redis://localhost", input=Request, observers=[note])
assert_type(flow, Flow[Request])


def without_input(redis: Redis) -> None:
    assert_type(Flow("access", redis), Flow[Any])
    Flow("access", redis, keep=Keep(count=5, age=timedelta(days=1)), keep_failed=timedelta(days=1))
    Flow("access", redis, keep=5)  # type: ignore[arg-type]
    Flow("access", redis, retries=5)  # type: ignore[call-arg]
    flow.stage("check", retries=5)  # type: ignore[call-arg]
    flow.stage("check", timeout=5)  # type: ignore[arg-type]


@flow.stage("check", next="grant", goto=["reject"], timeout=timedelta(seconds=3))
async def check(job: Request, run: Run) -> Checked | Goto[None]:
    assert_type(run.correlation_id, str)
    return Checked(1)


@flow.stage("grant", timeout=None, max_stalls=5)
def grant(job: Checked) -> FanOut[Request]:
    return FanOut([Request("ann")])


# A handler stays the function it is, so that it can be called, and tested, as one.
assert_type(grant(Checked(1)), FanOut[Request])
still: Callable[[Request, Run], Coroutine[Any, Any, Checked | Goto[None]]] = check


async def use() -> None:
    async with flow, flow.workers({"check": 2}):
        job_id = await flow.start(Request("ann"))
        assert_type(job_id, str)
        await flow.start({"user": "ann"})
        await flow.start(Checked(1))  # type: ignore[arg-type]
        job = await flow.wait(job_id, timeout=timedelta(seconds=1))
        assert_type(job, FlowJob)
        assert_type(job.read(Checked), Checked)
        assert_type(job.reason, FlowFailureReason | None)
        assert_type(await flow.positions(), Positions)
        await flow.start_many([Request("ann"), {"user": "bob"}])
        await flow.start_many([Checked(1)])  # type: ignore[list-item]
