"""Queues and flows that are shown beside the jobs of the app, each at a server of its own, which may be away."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from onward.addresses import shown
from onward.dashboard.refusal import NotThere
from onward.errors import ConfigurationError, OnwardError
from onward.queue import Queue

if TYPE_CHECKING:  # flows need Redis, dashboards do not
    from onward.flow import Flow

T = TypeVar("T")
_PATIENCE = 0.7
"""Of the time that a page has, how much one of these servers may take: the others are still shown."""
_ADDRESS = re.compile(r"\w[\w+.-]*://[^\s'\"<>]+")
"""Clients quote addresses in what they raise, and those may have passwords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Generic[T]):
    """What a server said, or why it did not, in words."""

    found: T | None = None
    problem: str | None = None


def anchor(id: str) -> str:
    """An id as an element may have it: those of queues and flows may be any text."""
    return sha256(id.encode()).hexdigest()[:12]


class Beside:
    """The queues and flows of a dashboard, by their names.

    Queues connect when they are first asked. A flow is opened by whoever made it; only where the dashboard is served
    alone, as long as this is entered, it opens them itself.
    """

    def __init__(
        self, queues: Iterable[Queue[Any]] = (), flows: "Iterable[Flow[Any]]" = (), *, timeout: float = 1.0
    ) -> None:
        self.queues: Mapping[str, Queue[Any]] = _by_name("queue", queues, lambda one: isinstance(one, Queue))
        self.flows: Mapping[str, Flow[Any]] = _by_name("flow", flows, lambda one: hasattr(one, "positions"))
        self._patience = timeout * _PATIENCE
        self._is_alone = False
        self._opened: set[str] = set()
        self._opening = {name: asyncio.Lock() for name in self.flows}

    async def __aenter__(self) -> "Beside":
        self._is_alone = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_alone = False
        for name in list(self._opened):
            self._opened.discard(name)
            await self.flows[name].__aexit__(None, None, None)
        for queue in self.queues.values():
            await queue.disconnect()

    def has(self, kind: str | None) -> bool:
        """Whether there is anything that such a page could show."""
        return kind is None or bool(self.queues if kind == "queues" else self.flows)

    def queue(self, name: str) -> Queue[Any]:
        """The queue of this name; raises NotThere."""
        if name not in self.queues:
            raise NotThere(f"This dashboard was given no queue {name[:100]!r}.")
        return self.queues[name]

    def flow(self, name: str) -> "Flow[Any]":
        """The flow of this name; raises NotThere."""
        if name not in self.flows:
            raise NotThere(f"This dashboard was given no flow {name[:100]!r}.")
        return self.flows[name]

    async def opened(self, name: str) -> "Flow[Any]":
        """The flow of this name, opened if that is up to us."""
        flow = self.flow(name)
        if self._is_alone:
            # Each has a lock of its own: one that hangs must not stop the others.
            async with self._opening[name]:
                if name not in self._opened:
                    await flow.__aenter__()
                    self._opened.add(name)
        return flow

    async def ask(self, question: Callable[[], Awaitable[T]]) -> Answer[T]:
        """What a server answers within its time; that it does not is an answer too."""
        try:
            async with asyncio.timeout(self._patience):
                return Answer(found=await question())
        except TimeoutError:
            return Answer(problem=f"Its server did not answer within {self._patience:.1g} s.")
        except OnwardError as error:
            return Answer(problem=_ADDRESS.sub(lambda found: shown(found[0]), f"{error}"))

    async def ask_all(self, questions: Iterable[Callable[[], Awaitable[T]]]) -> list[Answer[T]]:
        """What each of several answers; all are asked at once."""
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self.ask(question)) for question in questions]
        return [task.result() for task in asked]


def _by_name(word: str, given: Iterable[Any], is_one: Callable[[object], bool]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in given:
        if not is_one(one):
            raise ConfigurationError(f"{word}s: expected a {word}, got: {one!r}")
        if one.name in found:
            raise ConfigurationError(f"{word}s: there are two of the name {one.name!r}; a {word} is known by it here")
        found[one.name] = one
    return found
