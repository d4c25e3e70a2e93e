"""What a page is, and what it is asked."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, TypeAlias
from uuid import UUID

from starlette.datastructures import QueryParams

from onward.client.app import Onward
from onward.dashboard.access import Visitor
from onward.dashboard.beside import Beside
from onward.dashboard.refusal import NotThere
from onward.dashboard.replays import Replays

Data: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a page is asked for. The answer is shared by all who ask the same, so it knows of no visitor."""

    app: Onward
    path: Mapping[str, str]
    """What the address has for the {names} of the page's path."""
    query: QueryParams
    """What comes behind the ? in the address."""
    hide_payloads: bool | None = False
    """None: hide those of types the app does not know, since nobody knows what is secret in them."""

    replays: Replays = field(default_factory=Replays)
    beside: Beside = field(default_factory=Beside)

    def id(self, name: str = "id") -> UUID:
        """A part of the path that is an id; raises NotThere for anything else."""
        try:
            return UUID(self.path[name])
        except ValueError:
            raise NotThere(f"{self.path[name][:100]!r} is no id: expected a UUID, as lists show it.") from None

    def shows_payloads_of(self, type_name: str) -> bool:
        """Whether inputs and outputs of this type may be seen."""
        return type_name in self.app.registry if self.hide_payloads is None else not self.hide_payloads


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: where it is, what it is called, and how it comes by what it shows."""

    path: str
    """Below the dashboard: "/jobs", "/jobs/{id}"."""
    title: str
    template: str
    look: Callable[[Ask], Awaitable[Data]]
    """Reads what the template shows, by the app's own methods. Raises NotThere and Refusal."""
    navigation: str | None = None
    """What it is called in the navigation; None: it is not there."""
    needs: str | None = None
    """"queues" or "flows": it is in the navigation only where the dashboard was given some."""
    every: float = 2.0
    """Seconds between two readings while somebody looks."""
    cost: int = 4
    """About how many statements a reading takes; with many pages open, each is read less often."""

    def is_below(self, other: "Page") -> bool:
        """Whether the navigation shows it as that one."""
        return self.path == other.path or (other.path != "/" and self.path.startswith(f"{other.path}/"))


@dataclass(slots=True)
class Progress:
    """How far something has come that is done one after another."""

    done: int = 0

    def advance(self, count: int) -> None:
        """So many more."""
        self.done += count

    @property
    def words(self) -> str:
        """For those who ask what was done before it failed."""
        return f" Before that, {self.done:,} had been seen to." if self.done else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What somebody wants done."""

    app: Onward
    visitor: Visitor
    fields: Mapping[str, Sequence[str]]
    """By name; each may have been given several times."""
    hide_payloads: bool | None = False
    replays: Replays = field(default_factory=Replays)
    beside: Beside = field(default_factory=Beside)
    progress: Progress = field(default_factory=Progress)

    def one(self, name: str) -> str:
        """The value of a field, without which there is nothing to do."""
        found = self.fields.get(name)
        if not found or not found[0]:
            raise NotThere(f"Nothing was chosen: {name} is missing.")
        return found[0]

    def maybe(self, name: str) -> str | None:
        """The value of a field, if it was given one."""
        found = self.fields.get(name)
        return found[0] if found and found[0] else None

    def ids(self, name: str) -> list[UUID]:
        """The ids of a field, each once; raises NotThere where there are none."""
        self.one(name)
        try:
            return list(dict.fromkeys(UUID(text) for text in self.fields[name]))
        except ValueError:
            raise NotThere(f"{name}: expected ids, as lists show them.") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked before something is done."""

    words: str
    """ "Retry 3 chains?" """
    button: str
    """ "Retry" """
    details: Sequence[str] = ()
    """What there is to know about it, each a sentence."""
    is_final: bool = False
    """Whether it cannot be undone."""
    text: tuple[str, str] | None = None
    """The name and the label of a text that goes with it."""
    inputs: Sequence[tuple[str, str, str]] = ()
    """Short texts that go with it: name, label, and what stands there at first."""
    options: Sequence[tuple[str, str]] = ()
    """Boxes to tick: name and label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that can be done: it is asked first, goes through the gate, and is written down."""

    name: str
    """In the address: "retry"."""
    ask: Callable[[Form], Awaitable[Question]]
    do: Callable[[Form], Awaitable[str]]
    """Does it, and says what was done."""
    records: Sequence[str] = field(default=())
    """The fields that it takes from a page, and that the audit log shows; never payloads."""


def asking(words: str, button: str, *details: str, is_final: bool = False) -> Callable[[Form], Awaitable[Question]]:
    """Always the same question, about what a form names: `{queue}` stands for the value of that field."""

    async def ask(form: Form) -> Question:
        filled = [_filled(text, form) for text in (words, *details)]
        return Question(words=filled[0], button=button, details=filled[1:], is_final=is_final)

    return ask


def _filled(text: str, form: Form) -> str:
    named = {name: form.one(name) for _, name, _, _ in Formatter().parse(text) if name}
    # A dashboard knows only the queues and flows that it was given.
    if "queue" in named:
        form.beside.queue(named["queue"])
    if "flow" in named:
        form.beside.flow(named["flow"])
    return text.format_map(named)
