"""Handlers in threads and in processes of their own, for payloads that are encrypted."""

from dataclasses import dataclass
from typing import Annotated, Literal

from onward import Attempt, Next, job
from onward.crypto import Secret


@dataclass
class Login:
    name: str
    password: Annotated[str, Secret]


@job("sealed.upper", executor="process")
def upper(attempt: Attempt[str]) -> str:
    return attempt.input.upper()


@job("sealed.join", internal=True, blocked_by=[upper], executor="process")
def join(attempt: Attempt[str]) -> str:
    return " & ".join(attempt.outputs_of(upper)) + attempt.input


@job("sealed.split", continues_to=[join])
def split(attempt: Attempt[list[str]]) -> Next[str]:
    blockers = [upper.with_input(text) for text in attempt.input]
    return attempt.continue_with(join, " in a process", blockers=blockers)


@job("sealed.fail", executor="process", max_attempts=1)
def fail(attempt: Attempt[Login]) -> str:
    attempt.progress(0.5, f"trying {attempt.input.password}")
    raise ValueError(f"{attempt.input.password} is wrong")


@dataclass
class Choice:
    colour: Annotated[Literal["red", "blue"], Secret]


@job("sealed.choose", internal=True)
def choose(attempt: Attempt[Choice]) -> str:
    return attempt.input.colour


@job("sealed.mislead", executor="process", continues_to=[choose], max_attempts=1)
def mislead(attempt: Attempt[str]) -> Next[str]:
    return attempt.continue_with(choose, Choice(attempt.input))  # type: ignore[arg-type]


JOBS = (split, join, upper, fail, choose, mislead)
