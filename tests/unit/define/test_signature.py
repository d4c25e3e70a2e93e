"""What a handler's annotations say, and what to write instead when they say nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from onward.define.attempt import Attempt, SyncTransaction, Transaction
from onward.define.job_type import JobType, Step, job
from onward.define.outcome import Done, Next, Outcome
from onward.errors import ConfigurationError, DefinitionError


@dataclass
class Order:
    id: int


def problem_of(handler: Callable[..., Any]) -> str:
    with pytest.raises(DefinitionError) as refusal:
        job("orders.charge")(handler)
    (problem,) = refusal.value.problems
    assert problem.startswith("orders.charge: ")
    return problem


def test_a_plain_output_completes_the_chain() -> None:
    @job("charge")
    async def charge(attempt: Attempt[Order]) -> str:
        return ""

    signature = charge.signature
    assert (signature.input, signature.output, signature.transaction) == (Order, str, Transaction)
    assert (signature.may_complete, signature.may_continue, signature.is_async) == (True, False, True)


@pytest.mark.parametrize(
    ("annotation", "may_complete", "may_continue"),
    [(Next[str], False, True), (Done[str], True, False), (Outcome[str], True, True), (None, True, False)],
)
def test_the_return_annotation_says_whether_a_chain_may_end_or_go_on(
    annotation: Any, may_complete: bool, may_continue: bool
) -> None:
    async def charge(attempt: Attempt[Order]) -> Any: ...

    charge.__annotations__["return"] = annotation
    made: JobType[Order, Any] = job("charge")(charge)

    assert (made.signature.may_complete, made.signature.may_continue) == (may_complete, may_continue)
    assert made.signature.output in (str, type(None))


def test_a_def_handler_is_not_async_and_names_its_transaction() -> None:
    @job("charge")
    def charge(attempt: Attempt[Order, SyncTransaction]) -> str:
        return ""

    assert (charge.signature.is_async, charge.signature.transaction) == (False, SyncTransaction)


def test_classes_defined_beside_the_handler_may_be_annotations() -> None:
    @dataclass
    class Local:
        id: int

    @job("charge")
    async def charge(attempt: "Attempt[Local]") -> "Outcome[Local]":
        return Done(attempt.input)

    assert (charge.signature.input, charge.signature.output) == (Local, Local)


def test_an_internal_type_is_only_a_step() -> None:
    @job("ship", internal=True)
    async def ship(attempt: Attempt[Order]) -> str:
        return ""

    assert type(ship) is Step
    assert repr(ship) == "<Step 'ship'>"


def test_a_handler_without_annotations_is_refused() -> None:
    async def charge(attempt):  # type: ignore[no-untyped-def]
        return ""

    assert "async def charge(attempt: Attempt[Input]) -> Output" in problem_of(charge)


def test_a_handler_without_a_return_annotation_is_refused() -> None:
    async def charge(attempt: Attempt[Order]):  # type: ignore[no-untyped-def]
        return ""

    assert "-> Output" in problem_of(charge)


def test_a_handler_with_more_parameters_is_refused() -> None:
    async def charge(attempt: Attempt[Order], more: int) -> str:
        return ""

    assert "async def charge(attempt: Attempt[Input])" in problem_of(charge)


def test_a_handler_that_takes_no_attempt_is_refused() -> None:
    async def charge(order: Order) -> str:
        return ""

    assert "must be annotated Attempt[Input]" in problem_of(charge)


def test_a_bare_attempt_is_refused() -> None:
    async def charge(attempt: Attempt) -> str:  # type: ignore[type-arg]
        return ""

    assert "must be annotated Attempt[Input]" in problem_of(charge)


def test_an_annotation_that_cannot_be_resolved_is_refused() -> None:
    async def charge(attempt: "Attempt[Nowhere]") -> str:  # type: ignore[name-defined]  # noqa: F821
        return ""

    assert "cannot be resolved" in problem_of(charge)


def test_job_needs_its_name() -> None:
    with pytest.raises(ConfigurationError, match="@job"):
        job("charge")("not a function")  # type: ignore[call-overload]


# -- a type that gets its handler later


def test_a_type_without_a_handler_gets_it_later() -> None:
    approve = JobType("approve", input=Order, output=bool)
    assert approve.run is None

    @approve.handler
    async def decide(attempt: Attempt[Order]) -> bool:
        return True

    assert decide is approve
    assert approve.run is not None


def test_a_second_handler_is_refused() -> None:
    @job("charge")
    async def charge(attempt: Attempt[Order]) -> str:
        return ""

    async def again(attempt: Attempt[Order]) -> str:
        return ""

    with pytest.raises(DefinitionError, match="it has a handler already"):
        charge.handler(again)


def test_a_handler_that_takes_another_input_is_refused() -> None:
    approve = JobType("approve", input=Order, output=bool)

    async def decide(attempt: Attempt[int]) -> bool:
        return True

    with pytest.raises(DefinitionError, match="approve: its handler takes"):
        approve.handler(decide)  # type: ignore[call-overload]


def test_a_chain_to_start_keeps_what_was_asked_for() -> None:
    approve = JobType("approve", input=Order, output=bool)

    chain = approve.with_input(Order(7), priority=3)

    assert (chain.job_type, chain.input, chain.priority, chain.id) == (approve, Order(7), 3, None)
