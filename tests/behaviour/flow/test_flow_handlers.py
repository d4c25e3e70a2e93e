"""Whatever can be called can be the handler of a stage: none is completed without having been run."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from flows import SOON
from onward.flow import Flow, FlowDefinitionError, FlowJobFailed

MakeFlow = Callable[..., Flow[Any]]


@dataclass
class Request:
    age: int


@dataclass
class Checked:
    older: int


async def check(ran: list[int], job: Request) -> Checked:
    await asyncio.sleep(0)
    ran.append(job.age)
    return Checked(job.age + 1)


def as_partial(ran: list[int]) -> Callable[..., Any]:
    return functools.partial(check, ran)


def as_decorated(ran: list[int]) -> Callable[..., Any]:
    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return function(*arguments)

        return call

    @traced
    async def handler(job: Request) -> Checked:
        return await check(ran, job)

    return handler


def as_object(ran: list[int]) -> Callable[..., Any]:
    class Check:
        async def __call__(self, job: Request) -> Checked:
            return await check(ran, job)

    return Check()


def as_object_that_returns_a_coroutine(ran: list[int]) -> Callable[..., Any]:
    class Check:
        def __call__(self, job: Request) -> Checked:
            return check(ran, job)  # type: ignore[return-value]

    return Check()


@pytest.mark.parametrize("redis", ["single"], indirect=True)
@pytest.mark.parametrize(
    "kind",
    [as_partial, as_decorated, as_object, as_object_that_returns_a_coroutine],
    ids=lambda kind: kind.__name__,
)
async def test_a_coroutine_function_is_awaited_whatever_is_around_it(
    make_flow: MakeFlow, kind: Callable[[list[int]], Callable[..., Any]]
) -> None:
    flow, ran = make_flow(), list[int]()
    flow.stage("check")(kind(ran))

    async with flow, flow.workers():
        job = await flow.wait(await flow.start(Request(30)), timeout=SOON)

    assert ran == [30]
    assert job.read(Checked) == Checked(31)


@pytest.mark.parametrize("redis", ["single"], indirect=True)
async def test_a_coroutine_that_came_from_a_thread_has_the_same_time_limit(make_flow: MakeFlow) -> None:
    flow, ended = make_flow(), list[str]()

    async def hang(job: Request) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    @functools.wraps(hang)
    def handler(job: Request) -> Any:
        return hang(job)

    flow.stage("check", timeout=timedelta(milliseconds=100))(handler)

    async with flow, flow.workers():
        with pytest.raises(FlowJobFailed, match="did not return"):
            await flow.wait(await flow.start(Request(30)), timeout=SOON)

    assert ended == ["cancelled"]


@pytest.mark.parametrize("redis", ["single"], indirect=True)
def test_a_generator_is_no_handler(make_flow: MakeFlow) -> None:
    async def handler(job: Request) -> AsyncIterator[Checked]:
        yield Checked(1)

    with pytest.raises(FlowDefinitionError, match="yield"):
        make_flow().stage("check")(handler)
