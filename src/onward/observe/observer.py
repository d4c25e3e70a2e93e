"""Who is told what. Asking `wants` first costs a dictionary look-up, so that nothing is built that nobody reads."""

import logging
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias, cast

import msgspec

from onward.model import JobId
from onward.observe import events
from onward.observe.events import Event
from onward.observe.outage import Outage
from onward.observe.subscribers import Subscriber, Subscribers

logger = logging.getLogger("onward.observe")
_ASK_AGAIN = 1.0
"""Seconds."""
_OF_OUTAGES = (events.StateError, events.NotifyError, events.NotifyRecovered)


class Observer(Protocol):
    """Is told of events. What it raises is logged and goes no further. Onward waits for it: hand slow work on."""

    def wants(self, kind: type[Event]) -> bool:
        """Whether events of this kind should be made for it; asked again now and then, so that it may change."""
        ...

    def observe(self, event: Event) -> None:
        """Take note."""
        ...


Sent: TypeAlias = Callable[[], None]
"""Is told that what it was asked about before is committed."""


class Starting(NamedTuple):
    """Chains that are about to be stored."""

    carried: Mapping[str, str]
    """What is stored with each job: where it belongs."""
    sent: Sent
    """Called after the commit, and never if there is none."""


class ToStart(Protocol):
    """The first job of a chain that is about to be stored."""

    @property
    def id(self) -> JobId: ...
    @property
    def type_name(self) -> str: ...


class Tracer(Protocol):
    """An observer that is also asked before chains are stored."""

    def starting(self, jobs: Sequence[ToStart]) -> Starting | None: ...


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers: tuple[Observer, ...] = ()
        self._tracers: tuple[Tracer, ...] = ()
        self.are_tracing = False
        """Whether any of them is to be asked before chains are started."""
        self.set(observers)
        self._subscribers = Subscribers[Event](self._failed)
        self.wanted = frozenset[type[Event]]()
        """As of the last time that somebody asked."""
        self._asked_at = -_ASK_AGAIN
        """Not yet: modules build apps before anybody has set up logging."""
        self._database, self._hints = Outage(), Outage()

    def __iter__(self) -> Iterator[Observer]:
        return iter(self._observers)

    def set(self, observers: Iterable[Observer]) -> None:
        """Tell these from now on."""
        self._observers = tuple(observers)
        self._tracers = tuple(cast(Tracer, each) for each in self._observers if hasattr(each, "starting"))
        self.are_tracing = bool(self._tracers)
        self._asked_at = -_ASK_AGAIN

    def starting(self, jobs: Sequence[ToStart]) -> Starting | None:
        """Ask those who trace what to store with chains; they cannot fail the start."""
        for tracer in self._tracers:
            try:
                found = tracer.starting(jobs)
            except Exception:
                logger.exception("%s failed over a start", type(tracer).__qualname__)
                continue
            if found is not None:
                return Starting(found.carried, partial(self._sent, tracer, found.sent))
        return None

    def _sent(self, tracer: Tracer, sent: Sent) -> None:
        try:
            sent()
        except Exception:
            logger.exception("%s failed after a start", type(tracer).__qualname__)

    def wants(self, *kinds: type[Event]) -> bool:
        """Whether anybody listens to any of these."""
        if time.monotonic() >= self._asked_at + _ASK_AGAIN:
            self._ask()
        return not self.wanted.isdisjoint(kinds)

    def emit(self, event: Event) -> None:
        """Tell everybody who wants to know."""
        if type(event) in _OF_OUTAGES:
            event = self._in_outage(event)
        if time.monotonic() >= self._asked_at + _ASK_AGAIN:
            self._ask()
        self._subscribers.tell(event)

    def database_works(self, doing: str) -> None:
        """What was being done, and may have failed before, works. Costs next to nothing while nothing fails."""
        if self._database.is_on and (over := self._database.worked(doing)):
            self.emit(events.StateRecovered(seconds=over[0], errors=over[1]))

    def hints_work(self, doing: str) -> None:
        """The same for hints."""
        if self._hints.is_on and (over := self._hints.worked(doing)):
            self.emit(events.NotifyRecovered(seconds=over[0], errors=over[1]))

    def _in_outage(self, event: Event) -> Event:
        """The event with its place in an outage."""
        match event:
            case events.StateError():
                return msgspec.structs.replace(event, is_first=self._database.failed(event.doing))
            case events.NotifyError():
                return msgspec.structs.replace(event, is_first=self._hints.failed(event.doing))
            case events.NotifyRecovered(errors=0) if over := self._hints.worked():
                return msgspec.structs.replace(event, seconds=over[0], errors=over[1])
            case _:
                return event

    def _ask(self) -> None:
        """Who wants what; what they say holds for a second."""
        now, by_kind = time.monotonic(), dict[type[Event], tuple[Subscriber, ...]]()
        for observer in self._observers:
            for kind in typing.get_args(Event):
                try:
                    if observer.wants(kind):
                        by_kind[kind] = (*by_kind.get(kind, ()), observer.observe)
                except KeyboardInterrupt:
                    raise
                except BaseException:
                    name = type(observer).__qualname__
                    logger.exception("%s cannot say whether it wants %s", name, kind.__name__)
        self._subscribers.by_kind, self.wanted = by_kind, frozenset(by_kind)
        self._asked_at = now

    def _failed(self, subscriber: Subscriber, event: Event, error: BaseException) -> None:
        name = type(getattr(subscriber, "__self__", subscriber)).__qualname__
        logger.error("%s failed on %s", name, type(event).__name__, exc_info=error)
