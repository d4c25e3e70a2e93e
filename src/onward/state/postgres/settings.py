"""What every Postgres driver needs to know of the server: session settings and error codes."""

from onward.transport import CONNECT, IDLE, INTERVAL, PROBES

_TRANSIENT = {"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300", "25006"}

CHECK_CLIENT = "SELECT set_config('client_connection_check_interval', '1s', false)"
"""Has the server end a statement whose client is gone, rather than commit it unheard. Not every server can."""


def session_settings() -> dict[str, str]:
    """For connections that run only our statements: no JIT, plans that do not change their minds on an
    empty table, and no long wait for a lock that the transaction of an application holds.
    """
    return {
        **transport_settings(),
        "lock_timeout": "1s",
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


def is_transient_code(code: str | None) -> bool:
    """Serialization failures, deadlocks, and servers that are starting, stopping, full or demoted."""
    return code is not None and (code in _TRANSIENT or is_disconnect_code(code))


def is_disconnect_code(code: str | None) -> bool:
    """The session has ended."""
    return code is not None and (code.startswith("08") or code in {"57P01", "57P02", "57P03"})


def is_stale_code(code: str | None) -> bool:
    """What our functions raise that settle one attempt."""
    return code == "OW003"


def is_read_only_code(code: str | None) -> bool:
    """The transaction may not write; unless its owner wanted that, the server was demoted or is a standby."""
    return code == "25006"
