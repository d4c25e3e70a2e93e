"""Which process a driver was opened in.

After a fork the child has the parent's sockets, whose answers it would steal, and locks whose holders do not exist in
it. It may neither use nor close what the parent opened.
"""

import os
from typing import Any
from weakref import WeakSet

from onward.errors import ConfigurationError

_inherited: list[Any] = []
"""What belongs to the parent: kept, because an object that is thrown away may end its connection."""


class Process:
    """The process this is. To ask the system at every call would cost more than all else that is checked there."""

    id = os.getpid()


class HomeProcess:
    """The process in which something was opened."""

    is_elsewhere = False
    """Whether this is a child of it."""

    def __init__(self) -> None:
        self.move_in()
        _homes.add(self)

    def move_in(self) -> None:
        """It is this one."""
        self._process, self.is_elsewhere = Process.id, False

    def require(self) -> None:
        """Raise in a child of the process that it is."""
        if self.is_elsewhere:
            raise self.refusal()

    def refusal(self) -> ConfigurationError:
        """What such a child is told."""
        return ConfigurationError(
            f"the app was opened in process {self._process}, of which this one, {Process.id}, is a fork: "
            "connections cannot be shared, so open the app after the fork"
        )


_homes = WeakSet[HomeProcess]()


def _was_forked() -> None:
    Process.id = os.getpid()
    for home in _homes:
        home.is_elsewhere = True


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=_was_forked)


def leave_to_parent(*things: Any) -> None:
    """Never touch these again, not even to throw them away."""
    _inherited.extend(things)
