"""Whether the server, and the way to it, are as jobs need them."""

from collections.abc import Iterator, Mapping

from onward.client.doctor.words import Level, counted, named, span, wrong
from onward.operating import Finding
from onward.state.facts import Diagnosis, ServerFacts

_OLDEST = 13
"""The oldest version of Postgres that is still maintained, and tried."""
_CLOCK, _CLOCK_FAR = 2.0, 60.0
_CROWDED = 0.8
_SHORT = 60_000
"""Milliseconds within which a handler's transaction may well not be done."""


def of_server(server: ServerFacts) -> Iterator[Finding]:
    """Its version, and whether it takes writes."""
    if server.version // 10_000 < _OLDEST:
        version = f"Postgres {server.version // 10_000}"
        yield wrong(
            "server", "warning", f"the server is {version}, too old to be tried", f"upgrade to {_OLDEST} or newer"
        )
    if server.is_standby:
        advice = "connect to the primary; on a standby unlogged tables, which limits need, cannot even be read"
        yield wrong("server", "error", "this is a standby, which takes no writes", advice)


def of_clock(ahead: float | None) -> Iterator[Finding]:
    """Jobs go by the database's clock; what is given as a time goes by that of whoever gives it."""
    if ahead is not None and abs(ahead) > _CLOCK:
        where = "ahead of" if ahead > 0 else "behind"
        level: Level = "error" if abs(ahead) > _CLOCK_FAR else "warning"
        advice = "have both set by NTP: times that you pass (`at=`), and what logs say, are off by as much"
        yield wrong("clock", level, f"the database's clock is {span(abs(ahead))} {where} this machine's", advice)


def of_connections(server: ServerFacts, settings: Mapping[str, str]) -> Iterator[Finding]:
    """How near the server is to refusing more."""
    reserved = int(settings.get("superuser_reserved_connections", 3)) + int(settings.get("reserved_connections", 0))
    most = int(settings.get("max_connections", 0)) - reserved
    if most > 0 and server.connections > _CROWDED * most:
        words = f"{server.connections} of {counted(most, 'connection')} are in use"
        advice = "smaller pools (pool_size=), fewer processes, a pooler, or a larger max_connections"
        yield wrong("connections", "warning", words, advice)
    for what, limit in (("role", server.role_limit), ("database", server.database_limit)):
        if limit is not None and limit < 20:
            words = f"the {what} may have {counted(limit, 'connection')} only"
            advice = (
                "each process has a pool (pool_size=, 10), one for hints and one for leases: raise the CONNECTION LIMIT"
            )
            yield wrong("connections", "warning", words, advice)


def of_settings(settings: Mapping[str, str]) -> Iterator[Finding]:
    """What this role has, for whatever reason."""
    if settings.get("fsync") == "off":
        advice = "set fsync = on: when the machine dies the whole database may be lost"
        yield wrong("settings", "error", "fsync is off", advice)
    if settings.get("full_page_writes") == "off":
        advice = "set full_page_writes = on, unless your file system never tears a page"
        yield wrong("settings", "warning", "full_page_writes is off", advice)
    if settings.get("synchronous_commit") == "off":
        words = "synchronous_commit is off: when the server dies, the last commits are lost though they were confirmed"
        advice = "set it on, or local, for this role; or be sure that jobs may be lost, or run twice"
        yield wrong("settings", "warning", words, advice)
    if settings.get("default_transaction_read_only") == "on":
        advice = "ALTER ROLE … RESET default_transaction_read_only"
        yield wrong("settings", "error", "transactions only read by default: nothing can be started or taken", advice)
    isolation = settings.get("default_transaction_isolation", "read committed")
    if isolation != "read committed":
        words = f"transactions are {isolation} by default"
        advice = "where others write the same rows, handlers' transactions fail and are tried again: use read committed"
        yield wrong("settings", "warning", words, advice)
    for name in ("statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"):
        limit = int(settings.get(name, 0))
        if 0 < limit < _SHORT:
            words = f"{name} is {limit:,} ms for this role"
            advice = "what takes longer in a handler's transaction fails: raise it for the role that works"
            yield wrong("settings", "warning", words, advice)


def of_pooler(server: ServerFacts, *, told: bool) -> Iterator[Finding]:
    """Whether somebody stands between, of whom the app does not know."""
    if server.is_pooled and not told:
        words = "there is a pooler between here and the server, and the app was not made for one"
        advice = "if it pools by transaction, say Onward(…, pgbouncer=True) (docs/how-to/pgbouncer.md)"
        yield wrong("pooler", "warning", words, advice)


def of_privileges(diagnosis: Diagnosis) -> Iterator[Finding]:
    """What this role may not do that a worker does."""
    if diagnosis.server is None or not diagnosis.lacking:
        return
    missing = [f"{privilege} on {what}" for privilege, what in diagnosis.lacking]
    words = f"role {diagnosis.server.user} may not do all that a worker does: {named(missing)}"
    yield wrong("privileges", "warning", words, "grant it what its part needs (docs/how-to/hardening.md)")
