"""Flows whose stages do not fit together, refused before anything runs."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NotRequired, TypedDict

import pytest

from onward import ConfigurationError
from onward.flow import FanOut, Flow, FlowDefinitionError, Goto, MissingAttribute, Rate


@dataclass
class Request:
    user: str


@dataclass
class Checked:
    score: int


@dataclass
class Grant:
    user: str
    score: int


@dataclass
class Lenient:
    user: str
    score: int = 0


class Partly(TypedDict):
    user: str
    score: NotRequired[int]


@dataclass
class Reserved:
    failedQueue: str  # noqa: N815 - the document's name


@dataclass
class Pages:
    pages: list[str]


def make(**options: Any) -> Flow[Any]:
    return Flow("access", "redis://127.0.0.1:1", **options)


def test_an_attribute_that_no_earlier_stage_provides_is_named() -> None:
    flow = make(input=Request)

    @flow.stage("prepare", next="grant")
    async def prepare(job: Request) -> None: ...

    @flow.stage("grant")
    async def grant(job: Grant) -> None: ...

    with pytest.raises(MissingAttribute, match=r"stage 'grant' asks for 'score'.* available are 'user'") as refused:
        flow.check()
    assert (refused.value.stage, refused.value.attribute, refused.value.available) == ("grant", "score", ("user",))


async def test_opening_a_flow_checks_it_first() -> None:
    flow = make(input=Request)

    @flow.stage("grant")
    async def grant(job: Grant) -> None: ...

    with pytest.raises(MissingAttribute):
        async with flow:  # nothing listens at that address
            pass


def test_an_attribute_must_be_there_whichever_way_the_job_came() -> None:
    flow = make()

    @flow.stage("prepare", next="check", goto=["grant"])
    async def prepare(job: Request) -> Goto[None] | None: ...

    @flow.stage("check", next="grant")
    async def check(job: Request) -> Checked:
        return Checked(1)

    @flow.stage("grant")
    async def grant(job: Grant) -> None: ...

    with pytest.raises(MissingAttribute, match="a job may get there without it"):
        flow.check()


@pytest.mark.parametrize("kind", [Lenient, Partly])
def test_what_has_a_default_may_be_missing(kind: Any) -> None:
    flow = make()

    @flow.stage("prepare", next="grant")
    async def prepare(job: Request) -> None: ...

    async def grant(job: Any) -> None: ...

    grant.__annotations__["job"] = kind
    flow.stage("grant")(grant)

    flow.check()


def test_results_children_and_loops_provide_attributes() -> None:
    flow = make()

    @flow.stage("split", next="join", children="check", collect="pages")
    async def split(job: Request) -> FanOut[Request, Checked]:
        return FanOut([])

    @flow.stage("check", next="grant", goto=["check"])
    async def check(job: Request) -> Checked | Goto[None]:
        return Checked(1)

    @flow.stage("grant")
    async def grant(job: Grant) -> None: ...

    @flow.stage("join", next="end")
    async def join(job: Pages) -> None: ...

    @flow.stage("end")
    async def end(job: Grant) -> None: ...

    flow.check()


def _unknown_next(flow: Flow[Any]) -> None:
    @flow.stage("one", next="two")
    async def one(job: Request) -> None: ...


def _unreachable(flow: Flow[Any]) -> None:
    for name in ("one", "two"):

        @flow.stage(name)
        async def handle(job: Request) -> None: ...


def _no_fields(flow: Flow[Any]) -> None:
    @flow.stage("one")
    async def one(job: Request) -> int:
        return 1


def _reserved(flow: Flow[Any]) -> None:
    @flow.stage("one")
    async def one(job: Request) -> Reserved:
        return Reserved("")


def _no_children(flow: Flow[Any]) -> None:
    @flow.stage("one")
    async def one(job: Request) -> FanOut[Request]:
        return FanOut([])


def _no_fan_out(flow: Flow[Any]) -> None:
    @flow.stage("one", children="one", collect="pages")
    async def one(job: Request) -> None: ...


@pytest.mark.parametrize(
    ("define", "words"),
    [
        (lambda flow: None, "there is no stage"),
        (_unknown_next, "stage 'one' leads to 'two', which is no stage: there are 'one'"),
        (_unreachable, "no stage leads to 'two'"),
        (_no_fields, "has no fields: use a dataclass"),
        (_reserved, "may not be named failedQueue"),
        (_no_children, "does not say where children begin"),
        (_no_fan_out, r"must be annotated -> FanOut\[…\]"),
    ],
)
def test_other_mistakes_are_named(define: Callable[[Flow[Any]], None], words: str) -> None:
    flow = make()
    define(flow)

    with pytest.raises(FlowDefinitionError, match=words):
        flow.check()


def test_a_group_must_be_an_attribute_too() -> None:
    flow = make()

    @flow.stage("call", rate=Rate(1, per=timedelta(seconds=1), group="tenant"))
    async def call(job: Request) -> None: ...

    with pytest.raises(MissingAttribute, match="'tenant'"):
        flow.check()


def test_an_index_must_be_an_attribute_too() -> None:
    flow = make(index=["tenant"])

    @flow.stage("call")
    async def call(job: Request) -> None: ...

    with pytest.raises(FlowDefinitionError, match="index='tenant': no stage provides it"):
        flow.check()


def test_handlers_are_refused_where_they_stand() -> None:
    flow = make()
    with pytest.raises(FlowDefinitionError, match="write its handler as `async def bare"):

        @flow.stage("bare")
        async def bare(job): ...  # type: ignore[no-untyped-def]

    with pytest.raises(FlowDefinitionError, match="two stages 'twice'"):
        for _ in range(2):

            @flow.stage("twice")
            async def twice(job: Request) -> None: ...

    for name in ("", "a b", "a:b", "{a}"):
        with pytest.raises(ConfigurationError, match="make a name"):
            flow.stage(name)
        with pytest.raises(ConfigurationError, match="make a name"):
            Flow(name, "redis://127.0.0.1:1")
