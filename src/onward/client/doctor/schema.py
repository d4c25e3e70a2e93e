"""Whether the tables are as migrations make them."""

from collections.abc import Iterator, Sequence

from onward.client.doctor.words import Level, wrong
from onward.operating import Finding
from onward.state.facts import Drift, IndexFacts

_BREAKS = ("table", "column", "function", "trigger")
"""What statements fail without, or do the wrong thing."""


def of_drift(drift: Sequence[Drift], *, is_file: bool) -> Iterator[Finding]:
    """Each by itself: what to do differs."""
    for one in drift:
        what = f"{one.kind} {one.name}" + (f" of {one.table}" if one.table not in ("", one.name) else "")
        match one.problem:
            case "missing":
                advice = _how_to_add(one, is_file=is_file)
                yield wrong("indexes" if one.kind == "index" else "drift", "error", f"{what} is missing", advice)
            case "different":
                level: Level = "error" if one.kind in _BREAKS else "warning"
                told = "" if one.kind == "function" else f": {one.found}, where migrations make {one.wanted}"
                advice = "somebody changed it by hand: put it back as `onward migrate --sql` has it"
                yield wrong("indexes" if one.kind == "index" else "drift", level, f"{what} differs{told}", advice)
            case "extra":
                cost = {"index": "every write pays for it", "trigger": "it runs with every write"}.get(one.kind)
                known = f"{what} is not of Onward's migrations" + (f"; {cost}" if cost else "")
                advice = "if you need it, keep it in a table of your own; the next migration may not expect it"
                yield wrong("drift", "warning", known, advice)


def _how_to_add(one: Drift, *, is_file: bool) -> str:
    if one.kind == "index" and one.wanted:
        if is_file:
            return f"make it again: {one.wanted}"
        made = one.wanted.replace("CREATE INDEX ", "CREATE INDEX CONCURRENTLY ", 1)
        return f"make it again, in Onward's schema: {made}"
    return "somebody dropped it: make it again as `onward migrate --sql` has it, or restore it from a backup"


def of_indexes(indexes: Sequence[IndexFacts]) -> Iterator[Finding]:
    """A build that was interrupted leaves one that nobody can use and everybody keeps up to date."""
    for index in indexes:
        if not index.is_usable:
            advice = f"REINDEX INDEX CONCURRENTLY {index.name}, in Onward's schema"
            yield wrong("indexes", "error", f"index {index.name} of {index.table} is invalid", advice)
