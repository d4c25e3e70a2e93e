"""Who is told what. Asking `wants` first costs a dictionary look-up, so that nothing is built that nobody reads."""

import logging
import typing
from collections.abc import Iterable
from typing import Protocol

from onward.observe.events import Event

logger = logging.getLogger("onward.observe")


class Observer(Protocol):
    """Told of events. What it raises is logged and goes no further; what it blocks, blocks Onward: hand work over."""

    def wants(self, kind: type[Event]) -> bool:
        """Whether events of this kind should be made for it; asked once, when the app is built."""
        ...

    def observe(self, event: Event) -> None:
        """Take note."""
        ...


class Observers:
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        observers = tuple(observers)
        kinds = typing.get_args(Event)
        self._by_kind = {kind: tuple(o for o in observers if o.wants(kind)) for kind in kinds}

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody listens."""
        return bool(self._by_kind[kind])

    def emit(self, event: Event) -> None:
        """Tell everybody who wants to know."""
        for observer in self._by_kind[type(event)]:
            try:
                observer.observe(event)
            except KeyboardInterrupt:
                raise
            except BaseException:  # also what ends a program elsewhere: the caller has nothing to do with it
                logger.exception("%s failed on %s", type(observer).__qualname__, type(event).__name__)
