"""Which process a driver was opened in.

After a fork the child has the parent's sockets, whose answers it would steal, and locks whose holders do not exist in
it. It may neither use nor close what the parent opened.
"""

import os
from typing import Any

from onward.errors import ConfigurationError

_inherited: list[Any] = []
"""What belongs to the parent: kept, because an object that is thrown away may end its connection."""


class Process:
    """The process this is. To ask the system at every call would cost more than all else that is checked there."""

    id = os.getpid()


def _was_forked() -> None:
    Process.id = os.getpid()


if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(after_in_child=_was_forked)


class HomeProcess:
    """The process in which something was opened."""

    def __init__(self) -> None:
        self.move_in()

    def move_in(self) -> None:
        """It is this one."""
        self._process = Process.id

    @property
    def is_elsewhere(self) -> bool:
        return Process.id != self._process

    def require(self) -> None:
        """Raise in a child of the process that it is."""
        if Process.id != self._process:
            raise ConfigurationError(
                f"the app was opened in process {self._process}, of which this one, {Process.id}, is a fork: "
                "connections cannot be shared, so open the app after the fork"
            )


def leave_to_parent(*things: Any) -> None:
    """Never touch these again, not even to throw them away."""
    _inherited.extend(things)
