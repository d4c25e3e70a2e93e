"""Who is told what. Asking `wants` first costs a dictionary look-up, so that nothing is built that nobody reads."""

import logging
import time
import typing
from collections.abc import Iterable
from typing import Protocol

from onward.observe.events import Event

logger = logging.getLogger("onward.observe")
_ASK_AGAIN = 1.0
"""Seconds."""


class Observer(Protocol):
    """Told of events. What it raises is logged and goes no further; what it blocks, blocks Onward: hand work over."""

    def wants(self, kind: type[Event]) -> bool:
        """Whether events of this kind should be made for it; asked again now and then, so that it may change."""
        ...

    def observe(self, event: Event) -> None:
        """Take note."""
        ...


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self._by_kind: dict[type[Event], tuple[Observer, ...]] = {}
        self._asked_at = -_ASK_AGAIN
        """Not yet: modules build apps before anybody has set up logging."""

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody listens."""
        return bool(self._interested()[kind])

    def emit(self, event: Event) -> None:
        """Tell everybody who wants to know."""
        for observer in self._interested()[type(event)]:
            try:
                observer.observe(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # also what ends a program elsewhere: the caller has nothing to do with it
                logger.exception("%s failed on %s", type(observer).__qualname__, type(event).__name__)

    def _interested(self) -> dict[type[Event], tuple[Observer, ...]]:
        """By kind of event, as they said a second ago at most."""
        if (now := time.monotonic()) >= self._asked_at + _ASK_AGAIN:
            kinds = typing.get_args(Event)
            self._by_kind = {kind: tuple(o for o in self._observers if self._is_wanted(o, kind)) for kind in kinds}
            self._asked_at = now
        return self._by_kind

    def _is_wanted(self, observer: Observer, kind: type[Event]) -> bool:
        try:
            return observer.wants(kind)
        except KeyboardInterrupt:
            raise
        except BaseException:
            logger.exception("%s cannot say whether it wants %s", type(observer).__qualname__, kind.__name__)
            return False
