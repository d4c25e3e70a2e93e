"""Output types along a chain: what plainly differs is told when the app is built, what cannot be compared fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NewType, Protocol, TypedDict

import pytest

from onward.define.attempt import Attempt
from onward.define.job_type import job
from onward.define.outcome import Next, Outcome
from onward.define.outputs import may_hold
from onward.define.registry import Registry
from onward.errors import DefinitionError


@dataclass
class Animal:
    name: str


@dataclass
class Dog(Animal): ...


@dataclass
class Parcel:
    tracking: str


class Named(TypedDict):
    name: str


class Tracked(TypedDict):
    tracking: str


class HasName(Protocol):
    name: str


UserId = NewType("UserId", int)


@pytest.mark.parametrize(
    ("promised", "given"),
    [
        (int, int),
        (Any, str),
        (str, Any),
        (object, Parcel),
        (float, int),
        (int, bool),
        (Animal, Dog),
        (Dog, Animal),
        (int | str, str),
        (int | str | None, int | None),
        (None, type(None)),
        (list[int], list[int]),
        (list, list[int]),
        (list[Any], list[Parcel]),
        (Sequence[int], list[int]),
        (dict[str, Animal], dict[str, Dog]),
        (dict, Named),
        (Named, Tracked),
        (Mapping, Named),
        (HasName, Parcel),
        (Annotated[int, "seconds"], int),
        (int, UserId),
        (str, Literal["a", "b"]),
        (Literal["a", "b"], Literal["b"]),
        (tuple[int, ...], tuple[int, ...]),
    ],
)
def test_what_may_fit_is_let_through(promised: Any, given: Any) -> None:
    assert may_hold(promised, given)


@pytest.mark.parametrize(
    ("promised", "given"),
    [
        (int, str),
        (str, int),
        (Animal, Parcel),
        (int, None),
        (Parcel, None),
        (int | str, Parcel),
        (int, int | str),
        (list[int], list[str]),
        (list[int], dict[str, int]),
        (dict[str, Animal], dict[str, Parcel]),
        (int, Named),
        (Animal, Named),
        (str, UserId),
        (Literal["a"], Literal["b"]),
        (Literal[1], str),
    ],
)
def test_what_plainly_differs_is_told(promised: Any, given: Any) -> None:
    assert not may_hold(promised, given)


@job("text", internal=True)
async def text(attempt: Attempt[str]) -> str:
    return attempt.input


def test_a_step_cannot_promise_what_the_steps_behind_it_do_not_give() -> None:
    @job("number", continues_to=[text])
    async def number(attempt: Attempt[int]) -> Next[int]:
        return attempt.continue_with(text, "")  # type: ignore[arg-type]

    with pytest.raises(DefinitionError, match="number: promises int, but continues to 'text', which gives str"):
        Registry([number, text])


def test_the_promise_is_followed_through_loops_and_further_steps() -> None:
    @job("middle", internal=True, continues_to=[text, "first"])
    async def middle(attempt: Attempt[int]) -> Next[str]:
        return attempt.continue_with(text, "")

    @job("first", continues_to=["first", middle])
    async def first(attempt: Attempt[int]) -> Outcome[int]:
        return attempt.continue_with(middle, 1)  # type: ignore[arg-type]

    with pytest.raises(DefinitionError) as refused:
        Registry([first, middle, text])

    assert set(refused.value.problems) == {
        "first: promises int, but continues to 'middle', which gives str",
        "middle: promises str, but continues to 'first', which gives int",
    }


def test_a_type_that_may_end_in_two_ways_promises_both() -> None:
    @job("either", continues_to=[text])
    async def either(attempt: Attempt[int]) -> Outcome[int | str]:
        return attempt.continue_with(text, "")

    assert "either" in Registry([either, text])
