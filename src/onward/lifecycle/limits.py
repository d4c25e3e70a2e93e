"""Limits as job types declare them, and as the database keeps them."""

from onward.define.limit import TypeLimit
from onward.state.contract import LimitRule


def rule_of(limit: TypeLimit) -> LimitRule:
    """What a type declares."""
    rate = limit.limit.rate
    return LimitRule(
        limit.stored_name,
        limit.limit.concurrency,
        None if rate is None else rate.every,
        1 if rate is None else rate.burst,
    )
