"""Which process a driver was opened in.

After a fork the child has the parent's sockets, whose answers it would steal, and locks whose holders do not exist in
it. It may neither use nor close what the parent opened.
"""

import os
from typing import Any

from onward.errors import ConfigurationError

_inherited: list[Any] = []
"""What belongs to the parent: kept, because an object that is thrown away may end its connection."""


class Home:
    """The process in which something was opened."""

    def __init__(self) -> None:
        self.move_in()

    def move_in(self) -> None:
        """It is this one."""
        self._process = os.getpid()

    @property
    def is_elsewhere(self) -> bool:
        return os.getpid() != self._process

    def require(self) -> None:
        """Raise in a child of the process that it is."""
        if self.is_elsewhere:
            raise ConfigurationError(
                f"the app was opened in process {self._process}, of which this one, {os.getpid()}, is a fork: "
                "connections cannot be shared, so open the app after the fork"
            )


def leave_to_parent(*things: Any) -> None:
    """Never touch these again, not even to throw them away."""
    _inherited.extend(things)
