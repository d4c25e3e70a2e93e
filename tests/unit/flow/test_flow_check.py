"""Flows whose stages do not fit together, refused before anything runs."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NotRequired, TypedDict

import pytest

from onward import Backoff
from onward.errors import ConfigurationError
from onward.flow import FanOut, Flow, FlowDefinitionError, Goto, Keep, MissingAttribute, Rate


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


# -- options

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("timeout", 30, "timeout must be a timedelta of at least 0.001 s, got: 30"),
        ("timeout", timedelta(0), "timeout must be a timedelta of at least"),
        ("lock", None, "lock must be a timedelta of at least"),
        ("max_retries", -1, "max_retries must be a whole number from 0, got: -1"),
        ("max_retries", "3", "max_retries must be a whole number from 0, got: '3'"),
        ("max_stalls", True, "max_stalls must be a whole number from 0, got: True"),
        ("delay", 5, "delay must be a timedelta that is not negative, got: 5"),
        ("delay", -SECOND, "delay must be a timedelta that is not negative"),
        ("backoff", 5, r"backoff must be Backoff\(…\), got: 5"),
        ("backoff", Backoff(jitter=2), r"backoff\.jitter must be a number from 0 to 1, got: 2"),
        ("rate", 5, r"rate must be Rate\(limit, per=…\), got: 5"),
        ("priorities", "yes", "priorities must be True or False, got: 'yes'"),
        ("goto", "grant", "goto must be a list of texts, got: 'grant'"),
        ("next", 5, "next must be a text of at least one character, got: 5"),
    ],
)
def test_options_of_a_stage_are_checked_where_it_is_defined(option: str, value: Any, words: str) -> None:
    flow = make()
    with pytest.raises(ConfigurationError, match=f"stage 'check' of flow 'access': {words}"):

        @flow.stage("check", **{option: value})
        async def check(job: Request) -> None: ...


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("keep", 5, r"keep must be a timedelta, or Keep\(count=…, age=…\), got: 5"),
        ("keep_failed", -SECOND, "keep_failed must be a timedelta that is not negative"),
        ("max_waiting", "9", "max_waiting must be a whole number from 1, got: '9'"),
        ("max_waiting", 0, "max_waiting must be a whole number from 1, got: 0"),
        ("index", "user", "index must be a list of texts, got: 'user'"),
        ("index", 5, "index must be a list of texts, got: 5"),
        ("observers", 5, "observers must be a list of functions, got: 5"),
        ("observers", [5], r"observers must be a list of functions, got: \[5\]"),
        ("wait", 3, "wait must be a timedelta of at least 0.01 s, got: 3"),
        ("wait", timedelta(0), "wait must be a timedelta of at least 0.01 s"),
        ("cluster", "yes", "cluster must be True or False, got: 'yes'"),
        ("first", "", "first must be a text of at least one character"),
    ],
)
def test_options_of_a_flow_are_checked_when_it_is_made(option: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"flow 'access': {words}"):
        make(**{option: value})


@pytest.mark.parametrize(
    ("make_it", "words"),
    [
        (lambda: Rate(0, per=SECOND), "Rate: limit must be a whole number from 1, got: 0"),
        (lambda: Rate(5, per=1), "Rate: per must be a timedelta of at least 0.001 s, got: 1"),  # type: ignore[arg-type]
        (lambda: Rate(5, per=SECOND, group=""), "Rate: group must be a text"),
        (lambda: Keep(count=-1, age=SECOND), "Keep: count must be a whole number from 0, got: -1"),
        (lambda: Keep(age=5), "Keep: age must be a timedelta"),  # type: ignore[arg-type]
        (lambda: Goto("grant", delay=-SECOND), "Goto: delay must be a timedelta that is not negative"),
        (lambda: Flow("access", None), "redis must be an address, or a client of redis.asyncio, got: None"),  # type: ignore[arg-type]
        (lambda: Flow("access", "localhost:secret@"), "redis must be an address like redis://… .*, got: …"),
        (lambda: Flow(5, "redis://localhost"), "make a name"),  # type: ignore[arg-type]
    ],
)
def test_other_values_are_checked_when_they_are_made(make_it: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        make_it()
    assert "secret" not in str(refused.value)
