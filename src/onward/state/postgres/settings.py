"""What every Postgres driver needs to know of the server: session settings and error codes."""

_TRANSIENT = {"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300", "25006"}


def session_settings() -> dict[str, str]:
    """For connections that run only our statements: no JIT, plans that do not change their minds on an
    empty table, and no long wait for a lock that the transaction of an application holds.
    """
    return {
        "lock_timeout": "1s",
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
        "enable_bitmapscan": "off",
    }


def is_transient_code(code: str | None) -> bool:
    """Serialization failures, deadlocks, and servers that are starting, stopping, full or demoted."""
    return code is not None and (code in _TRANSIENT or is_disconnect_code(code))


def is_disconnect_code(code: str | None) -> bool:
    """The session has ended."""
    return code is not None and (code.startswith("08") or code in {"57P01", "57P02", "57P03"})
