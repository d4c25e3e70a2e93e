"""The notify adapter that fits a database."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from onward.notify.contract import NotifyAdapter
from onward.notify.memory import MemoryNotify

Counter = Callable[[], AbstractContextManager[Callable[[], int]]]


def notify_for(
    *, postgres_dsn: str | None, channel: str, open_counter: Counter | None, lost: Callable[[Exception], None]
) -> NotifyAdapter:
    """LISTEN/NOTIFY for a Postgres that can be reached by address, the change counter for a file, else this process.

    `lost` is told when hints go down.
    """
    if open_counter is not None:
        from onward.notify.changes import ChangeNotify

        return ChangeNotify(open_counter)
    if postgres_dsn is not None:
        from onward.notify.postgres import PostgresNotify, wire_for

        return PostgresNotify(wire_for(postgres_dsn), channel=channel, lost=lost)
    return MemoryNotify()
