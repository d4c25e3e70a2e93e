"""Limits for people and programs: who holds, who waits, a change of figures. Written once, for both kinds of client."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

import msgspec

from onward.client.arguments import checked_limit
from onward.client.operations import Operations
from onward.define.limit import Limit, Rate, key_text, shown_name, stored_name
from onward.errors import ConfigurationError, LimitNotFound, require
from onward.lifecycle.effects import Effects
from onward.lifecycle.limits import rule_of
from onward.model import Job
from onward.notify.contract import Hint, HintKind
from onward.options import LONGEST_KEY, LONGEST_NAME, wrong_text
from onward.state.command import Steps
from onward.state.contract import LimitRule, StoredLimit
from onward.state.driver import Connection, run_now


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """A limit as it is in the database."""

    name: str
    concurrency: int | None
    rate: Rate | None
    """As few per second, or as one each so often."""
    declared_at: datetime | None
    """When a worker's code declared it, or something else than before."""
    changed_at: datetime | None
    """When it was changed at run time; None: it is as declared."""
    problem: str | None = None
    """What of its row cannot be read. Where that is a figure nobody is let in until it is changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStatus:
    """What goes on at a key of a limit."""

    key: str
    """Empty where the limit has none."""
    holding: int
    """How many jobs run, or are about to be taken."""
    waiting: int
    """How many wait for a place. Not more than a thousand are counted."""
    next_at: datetime | None
    """When the rate lets the next one in, if any waits for that."""


class LimitOperations:
    """What can be done with limits on one store."""

    def __init__(self, ready: Callable[[], Operations]) -> None:
        self._ready = ready

    async def list(self, *, tx: object) -> Sequence[LimitStatus]:
        store = self._ready().store
        return [_shown(one) for one in await store.read(store.state.limits(), tx=tx)]

    async def keys(self, name: str, *, after: str | None, limit: int, tx: object) -> Sequence[KeyStatus]:
        prefix, store = _checked(name), self._ready().store
        require(None if not after else wrong_text("after", after, most=LONGEST_KEY))
        place = None if after is None else f"{prefix}/{after}"
        found = await store.read(store.state.limit_uses(prefix, after=place, limit=checked_limit(limit)), tx=tx)
        return [
            KeyStatus(key=use.key[len(prefix) + 1 :], holding=use.placed, waiting=use.held, next_at=use.next_at)
            for use in found
        ]

    async def jobs(self, name: str, key: str | int | float, *, holding: bool, limit: int, tx: object) -> Sequence[Job]:
        operations = self._ready()
        state, limit_key = operations.store.state, f"{_checked(name)}/{key_text(key)}"
        require(wrong_text("key", limit_key, most=2 * LONGEST_NAME + 1 + LONGEST_KEY))
        look = (state.placed_jobs if holding else state.held_jobs)(limit_key, limit=checked_limit(limit))
        return [operations.shown_job(job) for job in await operations.store.read(look, tx=tx)]

    async def change(self, name: str, *, concurrency: int | None, rate: Rate | None) -> None:
        given = Limit(name, concurrency=concurrency, rate=rate)
        await self._set(name, partial(_changed, given=given))

    async def reset(self, name: str) -> None:
        await self._set(name, _as_declared)

    async def _set(self, name: str, make: Callable[[StoredLimit], LimitRule]) -> None:
        """In a transaction of its own: whoever changes a rule keeps all others from admitting jobs meanwhile."""
        stored, operations = _checked(name), self._ready()
        ours = [limit for kind in operations.registry.values() for limit in kind.limits if limit.name == name]
        effects = Effects(hints=[Hint(HintKind.READY, limit.type_name) for limit in ours])

        async def change(connection: Connection) -> None:
            state = operations.store.state
            limits = {one.rule.name: one for one in await connection.run(state.limits())}
            if stored not in limits and ours:  # no worker has stored it yet
                await connection.run(state.set_limits([rule_of(ours[0])], declared=True))
                limits = {one.rule.name: one for one in await connection.run(state.limits())}
            if stored not in limits:
                raise LimitNotFound(name, map(shown_name, limits))
            await connection.run(state.set_limits([make(limits[stored])], declared=False))

        await operations.store.write(Steps(change), lambda _: effects, doing="change a limit")


def _checked(name: str) -> str:
    require(wrong_text("name", name, most=LONGEST_NAME))
    return stored_name(name)


def _changed(stored: StoredLimit, *, given: Limit) -> LimitRule:
    """What is not said stays as it is."""
    rule = stored.rule
    if given.concurrency is not None:
        rule = msgspec.structs.replace(rule, places=given.concurrency)
    if given.rate is not None:
        rule = msgspec.structs.replace(rule, every=given.rate.every, burst=given.rate.burst)
    return rule


def _as_declared(stored: StoredLimit) -> LimitRule:
    return stored.rule if stored.declared is None else stored.rule.as_said(stored.declared)


def _shown(stored: StoredLimit) -> LimitStatus:
    rate, problem = None, stored.problem
    try:
        rate = _rate(stored.rule)
    except ConfigurationError as refusal:  # a hand has written it
        problem = problem or str(refusal)
    return LimitStatus(
        name=shown_name(stored.rule.name),
        concurrency=stored.rule.places,
        rate=rate,
        declared_at=stored.declared_at,
        changed_at=stored.changed_at,
        problem=problem,
    )


def _rate(rule: LimitRule) -> Rate | None:
    if rule.every is None:
        return None
    count = max(round(1 / rule.every), 1) if rule.every < 1 and (1 / rule.every).is_integer() else 1
    while rule.every * count < 0.001:
        count *= 1000
    return Rate(count, per=timedelta(seconds=rule.every * count), burst=rule.burst)


class Limits:
    """The limits of an app, by name. Made by `app.limits`.

    A limit without a name has that of its job type.

    >>> import asyncio
    >>> from onward import JobType, Limit, Onward
    >>> charge = JobType("charge", input=int, output=str, limit=Limit("stripe", concurrency=5))
    >>> async def main() -> None:
    ...     async with Onward("memory://", jobs=[charge]) as app:
    ...         await app.limits.change("stripe", concurrency=2)
    ...         print([(one.name, one.concurrency) for one in await app.limits.list()])
    >>> asyncio.run(main())
    [('stripe', 2)]
    """

    def __init__(self, operations: LimitOperations) -> None:
        self._operations = operations

    async def list(self, *, tx: object = None) -> Sequence[LimitStatus]:
        """Those that a worker has declared, by name."""
        return await self._operations.list(tx=tx)

    async def keys(
        self, name: str, *, after: str | None = None, limit: int = 100, tx: object = None
    ) -> Sequence[KeyStatus]:
        """The keys at which jobs run or wait, in order; the next page begins `after` the last of this one."""
        return await self._operations.keys(name, after=after, limit=limit, tx=tx)

    async def holding(
        self, name: str, key: str | int | float = "", *, limit: int = 100, tx: object = None
    ) -> Sequence[Job]:
        """The jobs that have a place: they run, or are about to be taken."""
        return await self._operations.jobs(name, key, holding=True, limit=limit, tx=tx)

    async def waiting(
        self, name: str, key: str | int | float = "", *, limit: int = 100, tx: object = None
    ) -> Sequence[Job]:
        """The jobs that wait for a place, the next one first."""
        return await self._operations.jobs(name, key, holding=False, limit=limit, tx=tx)

    async def change(self, name: str, *, concurrency: int | None = None, rate: Rate | None = None) -> None:
        """Have other figures from now on, until the code declares something else than it does now.

        What runs goes on. What is not said stays as it is.
        """
        await self._operations.change(name, concurrency=concurrency, rate=rate)

    async def reset(self, name: str) -> None:
        """Have the figures that the code declares."""
        await self._operations.reset(name)


class SyncLimits:
    """The same without an event loop: `client.limits`."""

    def __init__(self, operations: LimitOperations) -> None:
        self._operations = operations

    def list(self, *, tx: object = None) -> Sequence[LimitStatus]:
        """Those that a worker has declared, by name."""
        return run_now(self._operations.list(tx=tx))

    def keys(self, name: str, *, after: str | None = None, limit: int = 100, tx: object = None) -> Sequence[KeyStatus]:
        """The keys at which jobs run or wait, in order; the next page begins `after` the last of this one."""
        return run_now(self._operations.keys(name, after=after, limit=limit, tx=tx))

    def holding(self, name: str, key: str | int | float = "", *, limit: int = 100, tx: object = None) -> Sequence[Job]:
        """The jobs that have a place: they run, or are about to be taken."""
        return run_now(self._operations.jobs(name, key, holding=True, limit=limit, tx=tx))

    def waiting(self, name: str, key: str | int | float = "", *, limit: int = 100, tx: object = None) -> Sequence[Job]:
        """The jobs that wait for a place, the next one first."""
        return run_now(self._operations.jobs(name, key, holding=False, limit=limit, tx=tx))

    def change(self, name: str, *, concurrency: int | None = None, rate: Rate | None = None) -> None:
        """Have other figures from now on, until the code declares something else than it does now."""
        run_now(self._operations.change(name, concurrency=concurrency, rate=rate))

    def reset(self, name: str) -> None:
        """Have the figures that the code declares."""
        run_now(self._operations.reset(name))
