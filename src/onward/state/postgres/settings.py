"""What every Postgres driver needs to know of the server: session settings and error codes."""

import re
from functools import lru_cache
from typing import Any

from onward.errors import ConfigurationError
from onward.state.driver import Fault
from onward.state.statement import with_servers_own
from onward.transport import CONNECT, IDLE, INTERVAL, PROBES

_ENDED = frozenset({"57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04"})
"""The server has ended the session, or does not begin one: it stops, starts, or was tired of waiting."""
FORGOTTEN = "26000"
"""Of a prepared statement that the server knows no more."""
_BY_CODE = {
    "25006": Fault.READ_ONLY,
    "25P02": Fault.POISONED,
    FORGOTTEN: Fault.TROUBLE,
    "57014": Fault.TIMEOUT,
    "OW003": Fault.STALE,
}
_BY_CLASS = {
    "08": Fault.LOST,
    "22": Fault.VALUE,
    "23": Fault.VALUE,
    "40": Fault.TROUBLE,
    "53": Fault.TROUBLE,
    "55": Fault.TIMEOUT,
    "57": Fault.TROUBLE,
    "58": Fault.TROUBLE,
    "XX": Fault.TROUBLE,
}

_SHOW_ROWS = frozenset({"23502", "23514"})
"""What must not be null is, or a check fails."""
_REFUSED = re.compile(
    "password authentication failed|no password supplied|no pg_hba.conf entry|"
    'FATAL: +(role|database) ".*" does not exist'
)

CHECK_CLIENT = "SELECT pg_catalog.set_config('client_connection_check_interval', '1s', false)"
"""Has the server end a statement whose client is gone, rather than commit it unheard. Not every server can."""

IS_BUSY = "SELECT 1 FROM pg_catalog.pg_stat_activity WHERE pid = :process::int AND state = 'active'"
"""Whether the server is at work for a session."""
IS_THERE = "SELECT 1"
"""Whether there is a server, behind a pooler, whose word for a session is not the server's."""


INSISTED = {"default_transaction_isolation": "read committed", "search_path": "pg_catalog,pg_temp"}
"""Whatever the role's or the application's own are: our statements have to see what others did while they waited for
them, and call nobody's functions but the server's own."""


def session_settings() -> dict[str, str]:
    """For connections that run only our statements: no JIT, plans that do not change their minds on an
    empty table, no long wait for a lock that the transaction of an application holds, and nobody's functions but the
    server's own. Behind a pooler none of this holds: the statements that others may keep waiting for long say so
    themselves (`fragments/impatience.sql`).
    """
    return {
        **transport_settings(),
        **INSISTED,
        "lock_timeout": "100ms",
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "enable_bitmapscan": "off",
    }


def transport_settings() -> dict[str, str]:
    """For every connection of ours: the server too must notice a lost client, who may hold the locks of a phase.

    Unread answers are given more time than we give the server: handlers may be slow to read.
    """
    return {
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "20000",
    }


def libpq_options(*, unanswered: float) -> dict[str, int]:
    """`transport.watch` as libpq spells it."""
    return {
        "connect_timeout": int(CONNECT),
        "keepalives_idle": IDLE,
        "keepalives_interval": INTERVAL,
        "keepalives_count": PROBES,
        "tcp_user_timeout": int(unanswered * 1000),
    }


def fault_of_code(code: str | None, error: BaseException | None = None) -> Fault | None:
    """What the server means by a SQLSTATE. OW003 is what our functions raise that settle one attempt."""
    if code is None:
        return None
    if code == "0A000" and "cached" in str(error):  # a table was altered since a client prepared its statement
        return Fault.TROUBLE
    return Fault.LOST if code in _ENDED else _BY_CODE.get(code) or _BY_CLASS.get(code[:2])


def ask_safely(raw: Any) -> None:
    """Have a connection of asyncpg's, which asks the server about the types of parameters, do so without operators and
    functions that another role may have made, and that fit better than the server's own. And none that is set to
    another encoding than UTF-8: in those asyncpg (0.32) sends texts from memory that it has given up before, so that
    now and then something else is stored.
    """
    if raw.is_closed():
        return
    settings = raw.get_settings()
    if settings.get_text_codec().name != "utf-8":  # whatever a pooler calls it
        raise ConfigurationError(
            f"asyncpg's connection has client_encoding {settings.client_encoding}, in which it may send other text "
            "than it was given: leave client_encoding out, or say utf8, whatever the database's own encoding is; or "
            "use psycopg"
        )
    asked = getattr(raw, "_intro_query", None)
    if asked is not None:
        raw._intro_query = _with_servers_own(asked)


@lru_cache(maxsize=8)
def _with_servers_own(asked: str) -> str:
    return with_servers_own(asked).replace("!=", "OPERATOR(pg_catalog.<>)")


def hide_row(error: BaseException) -> None:
    """Have an error about a statement of ours not show the row that a constraint refused: payloads are in it, and what
    an error says goes into logs.
    """
    each: BaseException | None = error
    chain: list[Any] = []
    while each is not None:  # SQLAlchemy wraps the client's own
        chain.append(each)
        each = getattr(each, "orig", None) or each.__cause__
    if getattr(chain[-1], "sqlstate", None) not in _SHOW_ROWS:
        return
    row: Any = getattr(chain[-1], "detail", None) or getattr(getattr(chain[-1], "diag", None), "message_detail", None)
    for one in chain if row else ():
        one.args = tuple(said.replace(row, "…") if isinstance(said, str) else said for said in one.args)
        if hasattr(one, "detail") and isinstance(one.detail, str):  # asyncpg's, who appends it
            one.detail = None


def fault_of_libpq(message: str) -> Fault | None:
    """What an error without a code means: a server that was lost, or could not be reached; or one that does not let us
    in, of which libpq tells only the words.
    """
    return None if _REFUSED.search(message) else Fault.LOST
