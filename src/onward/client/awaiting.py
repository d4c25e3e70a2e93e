"""Waiting for the end of chains: one look serves all who wait in a process; only those wake whose chain has ended."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

from onward.client.waiting import CLOSED_MEANWHILE
from onward.errors import ChainNotFound, ConfigurationError, WaitTimeout
from onward.lifecycle.effects import Announcer
from onward.lifecycle.store import Store
from onward.model import ChainId
from onward.notify.contract import Hint, HintKind, Listener, NotifyAdapter

WaitFor: TypeAlias = Callable[[ChainId, timedelta | None], Awaitable[None]]
"""Waits until a chain has ended. Raises ChainNotFound and WaitTimeout."""

_FIRST_PAUSE = 0.005
"""A chain that ends at once may do so before anybody has heard that it is awaited."""
_TELL_EVERY = 1.0
_LINGER = 1.0
"""Seconds for which hints are listened to when nobody waits any more: often somebody does again."""
_FIRST_LOOK = 1.0
"""Seconds that the first look may take, beyond the timeout of whoever waits."""
_PER_WAITER, _SHARE = 0.00005, 3.0
"""Where every commit may have been the one: seconds between looks for each who waits, and times what the last took."""
_MOST_AT_ONCE = 1_000


def longer(pause: float) -> float:
    """From 5 ms to 100 ms quickly, then slowly to a second."""
    return min(pause * (2 if pause < 0.1 else 1.25), 1.0)


async def ended_among(store: Store, chain_ids: Sequence[ChainId]) -> dict[ChainId, bool]:
    """Of the chains that exist, whether they have ended."""
    return await store.read(store.state.ended_chains(chain_ids))


def poll(store: Store) -> WaitFor:
    """For code without an event loop: every caller looks for itself."""

    async def wait(chain_id: ChainId, timeout: timedelta | None) -> None:
        deadline = math.inf if timeout is None else time.monotonic() + timeout.total_seconds()
        pause = _FIRST_PAUSE
        while not _has_ended(chain_id, await ended_among(store, [chain_id])):
            left = deadline - time.monotonic()
            if timeout is not None and left <= 0:
                raise WaitTimeout(chain_id, timeout)
            await store.driver.sleep(min(pause, left))
            pause = longer(pause)

    return wait


def _has_ended(chain_id: ChainId, ended: dict[ChainId, bool]) -> bool:
    if chain_id not in ended:
        raise ChainNotFound([chain_id])
    return ended[chain_id]


@dataclass(slots=True)
class _Waited:
    """A chain that somebody waits for."""

    ended: "asyncio.Future[None]"
    looked: "asyncio.Future[None]"
    """Done with the first look."""
    look_at: float
    pause: float = _FIRST_PAUSE
    waiters: int = 0


@dataclass(slots=True)
class Awaiting:
    """Those who wait in an app's event loop."""

    store: Store
    notify: NotifyAdapter
    announcer: Announcer
    _tasks: asyncio.TaskGroup | None = None
    _looking: "asyncio.Task[None] | None" = None
    _listener: Listener | None = None
    _waited: dict[ChainId, _Waited] = field(default_factory=dict)
    _keys: dict[str, ChainId] = field(default_factory=dict)
    """By the keys of their hints."""
    _tell_at: float = 0.0
    _next_look: float = 0.0
    """Not before, if all that is known is that something has changed."""

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Whoever waits from now on is served by a task of this group, until closed."""
        self._tasks = tasks

    async def close(self) -> None:
        """Nobody is served any more."""
        self._tasks = None
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
            self._end(ConfigurationError(CLOSED_MEANWHILE))  # it may not have begun to look

    async def wait(self, chain_id: ChainId, timeout: timedelta | None) -> None:
        """Until a chain has ended. Raises ChainNotFound and WaitTimeout."""
        waited = self._join(chain_id)
        try:
            if timeout is not None:
                await asyncio.wait([waited.ended], timeout=timeout.total_seconds())
                if not waited.looked.done():
                    first = [waited.ended, waited.looked]
                    await asyncio.wait(first, timeout=_FIRST_LOOK, return_when=asyncio.FIRST_COMPLETED)
                if not waited.ended.done():
                    raise WaitTimeout(chain_id, timeout)
            # Shielded: others may wait for the same chain.
            await asyncio.shield(waited.ended)
        finally:
            self._leave(chain_id, waited)

    def _join(self, chain_id: ChainId) -> _Waited:
        if self._tasks is None:
            raise ConfigurationError("the app is not open: use `async with app:` around this call")
        waited = self._waited.get(chain_id)
        if waited is None:
            loop = asyncio.get_running_loop()
            waited = _Waited(loop.create_future(), loop.create_future(), time.monotonic())
            self._waited[chain_id] = waited
            self._keys[str(chain_id)] = chain_id
            self.store.awaited.add(str(chain_id))
        waited.waiters += 1
        if self._looking is None:
            self._tell_at = time.monotonic() + _TELL_EVERY
            self._looking = self._tasks.create_task(self._look_until_nobody_waits(), name="onward awaiting")
        elif self._listener is not None:
            self._listener.wake()
        return waited

    def _leave(self, chain_id: ChainId, waited: _Waited) -> None:
        waited.waiters -= 1
        if not waited.waiters or waited.ended.done():
            waited.ended.cancel()
            self._forget(chain_id, waited)

    def _forget(self, chain_id: ChainId, waited: _Waited) -> None:
        if self._waited.get(chain_id) is waited:
            del self._waited[chain_id], self._keys[str(chain_id)]

    def _tell(self, chain_ids: Iterable[ChainId]) -> None:
        """Workers announce the end of chains that somebody waits for, as far as they have heard it lately."""
        hints = [Hint(HintKind.AWAITED, str(chain_id)) for chain_id in chain_ids]
        for hint in hints:
            self.store.awaited.add(hint.key)
        if hints:
            self.announcer.post(hints)

    # -- the task

    async def _look_until_nobody_waits(self) -> None:
        try:
            while self._waited:
                async with self.notify.listen(ended=self._keys.keys()) as self._listener:
                    while self._waited or await self._somebody_comes(self._listener):
                        await self._turn(self._listener)
        except Exception as error:  # noqa: BLE001 - it is for those who wait to hear it
            self._end(error)
        finally:
            self._end(ConfigurationError(CLOSED_MEANWHILE))

    def _end(self, error: Exception) -> None:
        """Nothing is awaited any more: whoever joins later starts another task."""
        self._looking = self._listener = None
        for chain_id, waited in list(self._waited.items()):
            self._fail(chain_id, waited, error)

    async def _somebody_comes(self, listener: Listener) -> bool:
        await listener.wait(_LINGER)
        return bool(self._waited)

    async def _turn(self, listener: Listener) -> None:
        now = time.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + _TELL_EVERY
            self._tell(self._waited)
        # Those who are about to look anyway are served by the same look.
        due = [chain_id for chain_id, waited in self._waited.items() if waited.look_at <= now + waited.pause / 4]
        for first in range(0, len(due), _MOST_AT_ONCE):
            await self._look(due[first : first + _MOST_AT_ONCE])
        if self._waited:
            until = min(self._tell_at, *(waited.look_at for waited in self._waited.values()))
            self._heed(await listener.wait(max(until - time.monotonic(), 0.0)))

    def _heed(self, hints: Sequence[Hint]) -> None:
        now = time.monotonic()
        for hint in hints:
            if hint.kind is HintKind.ENDED and hint.key in self._keys:
                self._waited[self._keys[hint.key]].look_at = now
        if any(hint.kind is HintKind.UNKNOWN for hint in hints):
            for waited in self._waited.values():
                waited.look_at = min(waited.look_at, max(now, self._next_look))

    async def _look(self, chain_ids: Sequence[ChainId]) -> None:
        began = time.monotonic()
        try:
            ended = await ended_among(self.store, chain_ids)
        except Exception as error:  # noqa: BLE001 - it is for those who wait to hear it
            for chain_id in chain_ids:
                self._fail(chain_id, self._waited.get(chain_id), error)
            return
        self._tell([chain_id for chain_id in chain_ids if self._is_new(chain_id) and ended.get(chain_id) is False])
        now = time.monotonic()
        self._next_look = now + _SHARE * (now - began) + _PER_WAITER * len(self._waited)
        for chain_id in chain_ids:
            self._saw(chain_id, ended, now)

    def _is_new(self, chain_id: ChainId) -> bool:
        return chain_id in self._waited and not self._waited[chain_id].looked.done()

    def _saw(self, chain_id: ChainId, ended: dict[ChainId, bool], now: float) -> None:
        waited = self._waited.get(chain_id)
        if waited is None:
            return
        if chain_id not in ended:
            self._fail(chain_id, waited, ChainNotFound([chain_id]))
        elif ended[chain_id]:
            self._forget(chain_id, waited)
            _resolve(waited.ended)
        else:
            waited.look_at, waited.pause = now + waited.pause, longer(waited.pause)
            _resolve(waited.looked)

    def _fail(self, chain_id: ChainId, waited: _Waited | None, error: Exception) -> None:
        if waited is not None:
            self._forget(chain_id, waited)
            if not waited.ended.done():
                waited.ended.set_exception(error)
                waited.ended.exception()  # nobody may be left to hear it


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
