"""What to think of a case: a pure function."""

from collections.abc import Iterator

from onward.client.doctor.case import WORK, Case
from onward.client.doctor.file import of_file
from onward.client.doctor.schema import of_drift, of_indexes
from onward.client.doctor.server import of_clock, of_connections, of_pooler, of_privileges, of_server, of_settings
from onward.client.doctor.upkeep import of_autovacuum, of_bloat, of_holders, of_locks, of_transaction_ids
from onward.client.doctor.words import or_fine, wrong
from onward.client.doctor.work import of_leases, of_limits, of_orphans, of_paused, of_schedules
from onward.client.health import of_schema, of_unreached, of_workers
from onward.client.reaching import Unreached
from onward.operating import Finding
from onward.state.facts import ServerFacts

_ORPHANS = ("orphans",)
_TOLD_OF = {
    "settings": ("settings", "connections", "autovacuum"),
    "holders": ("snapshots",),
    "locks": ("locks",),
    "tables": ("bloat", "autovacuum"),
    "indexes": ("indexes", "bloat"),
    "catalogue": ("drift", "indexes"),
    "schema drift": ("drift", "indexes"),
    "privileges": ("privileges",),
    "leases": ("leases",),
    "keys": ("limits",),
    "file": ("file", "disk"),
    WORK: (),
}
"""By what could not be looked at: what must not be called in order. Other statements look for orphans."""


def judge(case: Case | Unreached) -> list[Finding]:
    """Everything that was looked at, in the order in which to see to it."""
    if isinstance(case, Unreached):
        return [of_unreached(case)]
    found = [*_of_database(case), *(_of_tables(case) if _is_newest(case) else ()), *_unseen(case)]
    unseen = {name for what in case.diagnosis.unseen for name in _TOLD_OF.get(what, _ORPHANS)}
    return [one for one in found if one.level != "ok" or one.name not in unseen]


def _is_newest(case: Case) -> bool:
    return case.diagnosis.version == case.diagnosis.newest


def _of_database(case: Case) -> Iterator[Finding]:
    diagnosis = case.diagnosis
    yield of_schema(diagnosis.version, diagnosis.newest, is_open=False)
    if diagnosis.file is not None:
        yield from or_fine(of_file(diagnosis.file), "file", f"{diagnosis.file.path} is as it should be")
    if diagnosis.server is not None:
        yield from _of_server(case, diagnosis.server)


def _of_server(case: Case, server: ServerFacts) -> Iterator[Finding]:
    diagnosis, settings = case.diagnosis, case.diagnosis.settings
    yield from or_fine(of_server(server), "server", f"Postgres {server.version // 10_000}")
    yield from or_fine(of_clock(diagnosis.clock_ahead), "clock", "the database's clock agrees with this machine's")
    yield from or_fine(of_connections(server, settings), "connections", f"{server.connections} connections are in use")
    yield from or_fine(of_settings(settings), "settings", "the role's settings suit")
    yield from or_fine(of_pooler(server, told=case.told_of_pooler), "pooler", "no pooler that the app does not know of")
    yield from or_fine(of_holders(diagnosis.holders), "snapshots", "nothing holds back vacuum")
    yield from or_fine(of_locks(diagnosis.locks), "locks", "nobody keeps others from its tables")
    yield from or_fine(of_transaction_ids(diagnosis), "transaction_ids", "there are enough")
    yield from or_fine(of_autovacuum(diagnosis), "autovacuum", "it keeps up")


def _of_tables(case: Case) -> Iterator[Finding]:
    diagnosis = case.diagnosis
    if "schema drift" not in diagnosis.unseen:
        drift = [*of_drift(diagnosis.drift, is_file=diagnosis.file is not None)]
        yield from or_fine(
            (one for one in drift if one.name == "drift"), "drift", "the tables are as migrations make them"
        )
        indexes = (*(one for one in drift if one.name == "indexes"), *of_indexes(diagnosis.indexes))
        yield from or_fine(indexes, "indexes", "all are there, and can be used")
    if diagnosis.server is not None:
        yield from or_fine(
            of_bloat(diagnosis.tables, diagnosis.indexes), "bloat", "tables and indexes are as large as need be"
        )
        yield from or_fine(of_privileges(diagnosis), "privileges", "this role may do all that a worker does")
    yield from or_fine(of_orphans(diagnosis.strays), "orphans", f"none among {_looked_at(diagnosis.most)}")
    yield from or_fine(of_leases(case), "leases", "none that ran out long ago")
    yield from or_fine(of_limits(case), "limits", "no key is stuck")
    if WORK in diagnosis.unseen:
        return
    yield from of_workers(case.workers, case.waiting, case.by_hand)
    yield from or_fine(of_paused(case), "paused", "no paused type has jobs that wait")
    yield from or_fine(of_schedules(case), "schedules", "each is declared by a live worker")


def _looked_at(most: int | None) -> str:
    return "all rows" if most is None else f"the newest {most:,} rows of each table; --deep looks at all"


def _unseen(case: Case) -> Iterator[Finding]:
    for what, why in case.diagnosis.unseen.items():
        advice = "ask again as a role that may, or when the database has less to do"
        if "lock timeout" in why or what == WORK:
            advice = "ask again when nobody has it locked; `locks` says who does, where this role may see it"
        yield wrong("unseen", "warning", f"could not look at {what}: {why}", advice)
    server = case.diagnosis.server
    if server is not None and not server.sees_others:
        words = "could not look at what sessions of other roles do, and since when"
        yield wrong("unseen", "warning", words, f"GRANT pg_read_all_stats TO {server.user}")
