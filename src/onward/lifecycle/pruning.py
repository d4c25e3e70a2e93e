"""How long chains are kept, as the database is told."""

from collections.abc import Mapping
from datetime import timedelta

from onward.define.registry import Registry
from onward.model import Retention
from onward.state.contract import Keeping


def kept_by(registry: Registry) -> list[Keeping]:
    """The chains of the types that an app declares: what others keep in its database is theirs to prune."""
    return keeping({kind.name: kind.retention for kind in registry.values() if not kind.definition.internal})


def keeping(retentions: Mapping[str, Retention | None]) -> list[Keeping]:
    """Rules for the types of which something is to be pruned."""
    rules = [
        Keeping(name, _seconds(retention.completed), _seconds(retention.failed))
        for name, retention in retentions.items()
        if retention is not None
    ]
    return [rule for rule in rules if (rule.completed, rule.failed) != (None, None)]


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()
