"""The notify adapter that fits a database."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from onward.notify.contract import NotifyAdapter
from onward.notify.memory import MemoryNotify
from onward.state.command import Command
from onward.transport import Reach

Counter = Callable[[], AbstractContextManager[Callable[[], int]]]
Run = Callable[[Command[None]], Awaitable[object]]


def notify_for(
    *, reach: Reach | None, run_on_postgres: Run | None, schema: str, open_counter: Counter | None
) -> NotifyAdapter:
    """The change counter of a file; LISTEN/NOTIFY for a Postgres that can be reached once more, NOTIFY for one that
    can only run statements; else this process."""
    if open_counter is not None:
        from onward.notify.changes import ChangeNotify

        return ChangeNotify(open_counter)
    channel = f"onward_{schema}"
    if reach is not None:
        from onward.notify.postgres import PostgresNotify
        from onward.notify.postgres_wires import wire_for

        return PostgresNotify(wire_for(reach), channel=channel, table=f'"{schema}".job')
    if run_on_postgres is not None:
        from onward.notify.postgres import SendingNotify

        return SendingNotify(run_on_postgres, channel=channel)
    return MemoryNotify()
