"""Whether Postgres keeps our tables in order: autovacuum, what holds it back, bloat, transaction ids."""

from collections.abc import Iterator, Mapping, Sequence

from onward.client.doctor.words import Level, counted, size, span, wrong
from onward.operating import Finding
from onward.state.facts import Diagnosis, Holder, IndexFacts, Lock, TableFacts

_HEADER, _ENTRY, _PAGE = 28, 16, 8192
"""Bytes that a row, and an entry of an index, take beside their values."""
_FULL = 0.7
"""How much of a page is in use, where all is well."""
_BLOATED, _WORTH_IT = 4, 64 << 20
"""Times as large as it need be, and so many bytes to be gained."""
_BEHIND, _MANY_DEAD = 10, 100_000
_LONG, _OLD = 15 * 60, 1_000_000
"""Seconds that a transaction may be open, and transactions that a snapshot may be old."""
_LOCKED = 5
"""Seconds for which a table may be locked without anybody waiting: a migration takes less."""
_MUCH_WAL = 10 << 30
_AGEING, _DANGEROUS = 500_000_000, 1_500_000_000


def of_autovacuum(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Jobs come and go: without it every take reads the dead rows of all before it."""
    settings = diagnosis.settings
    for name in ("autovacuum", "track_counts"):
        if settings.get(name) == "off":
            advice = f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf(); without it takes become slower and slower"
            yield wrong("autovacuum", "error", f"{name} is off on the server", advice)
    for table in diagnosis.tables:
        if table.autovacuum_off:
            advice = f"ALTER TABLE {table.name} RESET (autovacuum_enabled), in Onward's schema"
            yield wrong("autovacuum", "error", f"autovacuum is off for table {table.name}", advice)
        elif table.dead > _MANY_DEAD and table.dead > _BEHIND * _due(table, settings):
            last = "never" if table.vacuumed is None else f"{span(table.vacuumed)} ago"
            words = (
                f"autovacuum is far behind on table {table.name}: {counted(table.dead, 'dead row')}, last vacuum {last}"
            )
            advice = "see what holds it back below; else give it more workers and a higher autovacuum_vacuum_cost_limit"
            yield wrong("autovacuum", "warning", words, advice)


def _due(table: TableFacts, settings: Mapping[str, str]) -> float:
    """How many dead rows it takes until autovacuum comes."""
    threshold = float(settings.get("autovacuum_vacuum_threshold", 50)) if table.threshold is None else table.threshold
    scale = float(settings.get("autovacuum_vacuum_scale_factor", 0.2)) if table.scale is None else table.scale
    return threshold + scale * max(table.rows, 0.0)


def of_holders(holders: Sequence[Holder]) -> Iterator[Finding]:
    """What is deleted while somebody may still see it stays, and every take reads it."""
    for holder in holders:
        old = holder.transactions is not None and holder.transactions > _OLD
        long = holder.seconds is not None and holder.seconds > _LONG
        much = holder.wal is not None and holder.wal > _MUCH_WAL
        if not (old or long or much):
            continue
        facts = [f"for {span(holder.seconds)}"] if holder.seconds is not None else []
        facts += [f"{holder.transactions:,} transactions old"] if holder.transactions is not None else []
        facts += [f"{size(holder.wal)} of WAL kept"] if much and holder.wal is not None else []
        what = "keeps the log" if much and not (old or long) else "holds back vacuum"
        yield wrong("snapshots", "warning", f"{holder.kind} {holder.name} {what}: {', '.join(facts)}", _let_go(holder))


def of_locks(locks: Sequence[Lock]) -> Iterator[Finding]:
    """While somebody keeps a table to himself no job is started, taken or settled."""
    for lock in locks:
        since = "" if lock.seconds is None else f", for {span(lock.seconds)}"
        words = f"session {lock.session} has locked {lock.tables} ({lock.mode}){since}"
        waiting = f"; {counted(lock.waiting, 'session')} {'waits' if lock.waiting == 1 else 'wait'} for it"
        if lock.waiting or (lock.seconds or 0.0) > _LOCKED:
            advice = f"let it finish, or SELECT pg_terminate_backend({lock.session.partition(' ')[0]})"
            yield wrong("locks", "error", words + (waiting if lock.waiting else ""), advice)


def _let_go(holder: Holder) -> str:
    if holder.kind == "session":
        process = holder.name.partition(" ")[0]
        return (
            f"end its transaction, or SELECT pg_terminate_backend({process}); set idle_in_transaction_session_timeout"
        )
    if holder.kind == "prepared transaction":
        return f"COMMIT PREPARED '{holder.name}' or ROLLBACK PREPARED '{holder.name}'"
    return f"have its consumer catch up, or SELECT pg_drop_replication_slot('{holder.name}') if nobody needs it"


def of_bloat(tables: Sequence[TableFacts], indexes: Sequence[IndexFacts]) -> Iterator[Finding]:
    """By estimate: what is there, beside what so many rows of such a width need."""
    for table in tables:
        if table.rows >= 0 and (table.width is not None or table.rows == 0):
            needed = table.rows * ((table.width or 0) + _HEADER) / _FULL
            if _is_bloated(table.bytes, needed):
                advice = (
                    f"VACUUM FULL {table.name} while workers are stopped, or pg_repack; then see why vacuum was late"
                )
                yield wrong("bloat", "warning", _bloated("table", table.name, table.bytes, needed), advice)
    for index in indexes:
        if index.rows >= 0 and (index.width is not None or index.rows == 0):
            needed = index.rows * ((index.width or 0) + _ENTRY) / _FULL
            if _is_bloated(index.bytes, needed):
                advice = f"REINDEX INDEX CONCURRENTLY {index.name}, in Onward's schema"
                yield wrong("bloat", "warning", _bloated("index", index.name, index.bytes, needed), advice)


def _is_bloated(bytes: int, needed: float) -> bool:
    return bytes > _BLOATED * max(needed, _PAGE) and bytes - needed > _WORTH_IT


def _bloated(kind: str, name: str, bytes: int, needed: float) -> str:
    return f"{kind} {name} has {size(bytes)}, and needs about {size(max(needed, _PAGE))}"


def of_transaction_ids(diagnosis: Diagnosis) -> Iterator[Finding]:
    """A server that runs out of them stops taking writes."""
    if diagnosis.server is None:
        return
    ages = {"transaction ids": diagnosis.server.transaction_age, "multixact ids": diagnosis.server.multixact_age}
    for what, age in ages.items():
        if age > _AGEING:
            advice = "VACUUM (FREEZE) the oldest tables of this database, and end what holds back vacuum"
            level: Level = "error" if age > _DANGEROUS else "warning"
            yield wrong("transaction_ids", level, f"{age:,} {what} have been used since the oldest was frozen", advice)
