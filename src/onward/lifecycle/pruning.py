"""How long chains are kept, as the database is told."""

from collections.abc import Mapping
from datetime import timedelta

from onward.define.registry import Registry
from onward.errors import ConfigurationError
from onward.model import Retention
from onward.state.contract import Keeping, StateAdapter
from onward.state.history import HistoryStatements

NO_HISTORY = (
    "a SQLite file has none, only Postgres has; on SQLite say history=None, and keep chains for longer "
    "(completed=, failed=)"
)


def kept_by(registry: Registry) -> list[Keeping]:
    """The chains of the types that an app declares: what others keep in its database is theirs to prune."""
    return keeping({kind.name: kind.retention for kind in registry.values() if not kind.definition.internal})


def refuse_history(registry: Registry, state: StateAdapter) -> None:
    """Raise where a type says how long to keep a history in a database that keeps none."""
    names = [rule.type_name for rule in kept_by(registry) if rule.history is not None]
    if names and state.history is None:
        raise ConfigurationError(f"Retention(history=…), of {names[0]}: {NO_HISTORY}")


def history_of(state: StateAdapter) -> HistoryStatements:
    """The history, if the database keeps one."""
    if state.history is None:
        raise ConfigurationError(f"there is no history: {NO_HISTORY}")
    return state.history


def keeping(retentions: Mapping[str, Retention | None]) -> list[Keeping]:
    """Rules for the types of which something is to be pruned."""
    rules = [
        Keeping(name, _seconds(retention.completed), _seconds(retention.failed), _seconds(retention.history))
        for name, retention in retentions.items()
        if retention is not None
    ]
    return [rule for rule in rules if (rule.completed, rule.failed) != (None, None)]


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
