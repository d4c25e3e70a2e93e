"""The notify adapter that fits a database."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from onward.notify.contract import NotifyAdapter
from onward.notify.memory import MemoryNotify

Counter = Callable[[], AbstractContextManager[Callable[[], int]]]
Run = Callable[[str, dict[str, object]], Awaitable[object]]


def notify_for(
    *, postgres_dsn: str | None, run_on_postgres: Run | None, channel: str, open_counter: Counter | None
) -> NotifyAdapter:
    """The change counter of a file; LISTEN/NOTIFY for a Postgres that can be reached by address, NOTIFY for one that
    can only run statements; else this process."""
    if open_counter is not None:
        from onward.notify.changes import ChangeNotify

        return ChangeNotify(open_counter)
    if postgres_dsn is not None:
        from onward.notify.postgres import PostgresNotify
        from onward.notify.postgres_wires import wire_for

        return PostgresNotify(wire_for(postgres_dsn), channel=channel)
    if run_on_postgres is not None:
        from onward.notify.postgres import SendingNotify

        return SendingNotify(run_on_postgres, channel=channel)
    return MemoryNotify()
