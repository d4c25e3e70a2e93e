"""What a client can do, written once: `Onward` awaits these operations, `app.sync` runs them to their end."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from onward.client.completion import Completion, current_job
from onward.define.registry import Registry
from onward.define.request import NewChain
from onward.errors import ChainFailed, ChainNotFailed, ChainNotFound, ConfigurationError, WaitTimeout
from onward.lifecycle.after_commit import Effects
from onward.lifecycle.context import refuse_inside_transaction
from onward.lifecycle.start import plan_chains, start_jobs
from onward.lifecycle.store import Store
from onward.model import Blocker, Chain, ChainId, CompletedJob, FailedJob, Job, JobId, Page
from onward.state.contract import Change, Filter, Started
from onward.state.driver import Connection, Fault

_MOST_PER_PAGE = 1_000


class Wait(Protocol):
    """Waits a little for news of a chain."""

    async def wait(self, timeout: float) -> object: ...


WaitFor = Callable[[ChainId], AbstractAsyncContextManager[Wait]]


class Operations:
    """The operations of a client on one store."""

    def __init__(self, registry: Registry, store: Store, wait_for: WaitFor, now: Callable[[], float]) -> None:
        self.registry, self.store = registry, store
        self._wait_for, self._now = wait_for, now

    # -- start

    async def start(self, chains: Sequence[NewChain[Any]], *, tx: object) -> list[Started]:
        """Start chains, all or none; answers in order."""
        if not chains:
            return []
        return await start_jobs(self.store, plan_chains(self.registry, chains), tx=tx)

    # -- wait

    async def wait(self, chain_id: ChainId, timeout: timedelta | None) -> Any:
        """The output of a chain once it has completed."""
        refuse_inside_transaction("wait()")
        deadline = None if timeout is None else self._now() + timeout.total_seconds()
        pause = 0.005  # a chain that ends at once may do so before anybody has heard that it is awaited
        async with self._wait_for(chain_id) as news:
            while not await self._has_ended(chain_id):
                left = pause if deadline is None else min(pause, deadline - self._now())
                if left <= 0:
                    assert timeout is not None
                    raise WaitTimeout(chain_id, timeout)
                await news.wait(left)
                pause = min(pause * (2 if pause < 0.1 else 1.25), 1.0)
        return await self._output(chain_id)

    async def _has_ended(self, chain_id: ChainId) -> bool:
        async def look(connection: Connection) -> dict[ChainId, bool]:
            return await self.store.state.ended_chains(connection, [chain_id])

        ended = await self.store.read(look)
        if chain_id not in ended:
            raise ChainNotFound([chain_id])
        return ended[chain_id]

    async def _output(self, chain_id: ChainId) -> Any:
        chain = await self.find_chain(chain_id, tx=None)
        if chain is None:
            raise ChainNotFound([chain_id])
        job = chain.current
        if isinstance(job, FailedJob):
            raise ChainFailed(
                chain_id=chain_id, job_id=job.id, job_type=job.type_name, reason=job.reason, error=job.last_error
            )
        assert isinstance(job, CompletedJob)
        return self.registry.find(job.type_name).decode_output(job.output)

    # -- complete without a worker

    @asynccontextmanager
    async def complete(self, chain_id: ChainId, *, tx: object) -> AsyncIterator[Completion]:
        """The job a chain has come to, locked until the transaction ends."""
        if tx is not None:
            yield Completion(self.registry, self.store, await current_job(self.store, chain_id, tx), tx)
            return
        async with self.store.transaction() as own:
            yield Completion(self.registry, self.store, await current_job(self.store, chain_id, own), own)

    # -- change

    async def cancel(self, chain_ids: Sequence[ChainId], *, cascade: bool, tx: object) -> int:
        """Fail waiting jobs, ask running ones to stop; chains that have ended stay as they are. How many changed."""

        async def cancel(connection: Connection) -> Sequence[Change]:
            return await self.store.state.cancel(connection, chain_ids, cascade=cascade)

        return await self._change(cancel, "cancel", tx)

    async def retry(self, chain_ids: Sequence[ChainId], *, tx: object) -> int:
        """Bring failed chains back, all or none; how many came back."""
        answer_was_lost = False

        async def retry(connection: Connection) -> Sequence[Change]:
            nonlocal answer_was_lost
            try:
                return await self.store.state.retry(connection, chain_ids)
            except ChainNotFailed as refusal:
                if answer_was_lost and set(refusal.chain_ids) == set(chain_ids):
                    return await self._brought_back(connection, chain_ids)
                raise
            except Exception as error:
                answer_was_lost = answer_was_lost or self.store.driver.fault(error) is Fault.LOST
                raise

        return await self._change(retry, "retry", tx)

    async def _brought_back(self, connection: Connection, chain_ids: Sequence[ChainId]) -> Sequence[Change]:
        """The chains of a retry that went through although its answer was lost."""
        chains = await self.store.state.find_chains(connection, chain_ids)
        return [Change(chain.current.id, chain.id, chain.current.type_name, "retried") for chain in chains]

    async def trigger(self, chain_ids: Sequence[ChainId], *, tx: object) -> int:
        """Run scheduled jobs now; how many."""

        async def trigger(connection: Connection) -> Sequence[Change]:
            return await self.store.state.trigger(connection, chain_ids)

        return await self._change(trigger, "trigger", tx)

    async def delete(self, chain_ids: Sequence[ChainId], *, cascade: bool, tx: object) -> int:
        """Delete whole chains; how many. One that does not exist is none."""

        async def delete(connection: Connection) -> Sequence[Change]:
            return await self.store.state.delete(connection, chain_ids, cascade=cascade)

        return await self._change(delete, "delete", tx)

    async def _change(self, change: Callable[[Connection], Awaitable[Sequence[Change]]], doing: str, tx: object) -> int:
        """Change chains; how many were changed, those included that fail, or come back, with the ones asked for."""

        async def operation(connection: Connection) -> tuple[int, Effects]:
            changes = await change(connection)
            return len({change.chain_id for change in changes}), self.store.consequences.of_changes(changes)

        return await self.store.write(operation, tx=tx, doing=doing)

    async def pause(self, type_names: Sequence[str], *, tx: object) -> None:
        """Have workers leave types alone."""

        async def operation(connection: Connection) -> tuple[None, Effects]:
            await self.store.state.pause(connection, type_names)
            return None, Effects()

        await self.store.write(operation, tx=tx, doing="pause")

    async def resume(self, type_names: Sequence[str], *, tx: object) -> None:
        """Have workers take types again."""

        async def operation(connection: Connection) -> tuple[None, Effects]:
            await self.store.state.resume(connection, type_names)
            resumed = [Change(UUID(int=0), UUID(int=0), name, "triggered") for name in type_names]
            return None, Effects(hints=self.store.consequences.of_changes(resumed).hints)

        await self.store.write(operation, tx=tx, doing="resume")

    # -- read

    async def paused(self, *, tx: object) -> Sequence[str]:
        return await self.store.read(self.store.state.paused, tx=tx)

    async def find_job(self, job_id: JobId, *, tx: object) -> Job | None:
        async def look(connection: Connection) -> Sequence[Job]:
            return await self.store.state.find_jobs(connection, [job_id])

        found = await self.store.read(look, tx=tx)
        return found[0] if found else None

    async def find_chain(self, chain_id: ChainId, *, tx: object) -> Chain | None:
        async def look(connection: Connection) -> Sequence[Chain]:
            return await self.store.state.find_chains(connection, [chain_id])

        found = await self.store.read(look, tx=tx)
        return found[0] if found else None

    async def jobs(self, filter: Filter, *, after: JobId | None, limit: int, tx: object) -> Page[Job]:
        async def look(connection: Connection) -> Sequence[Job]:
            return await self.store.state.list_jobs(connection, filter, after=after, limit=limit)

        return _page(await self.store.read(look, tx=tx), _checked(limit))

    async def chains(self, filter: Filter, *, after: ChainId | None, limit: int, tx: object) -> Page[Chain]:
        async def look(connection: Connection) -> Sequence[Chain]:
            return await self.store.state.list_chains(connection, filter, after=after, limit=limit)

        return _page(await self.store.read(look, tx=tx), _checked(limit))

    async def blocked_by(self, chain_id: ChainId, *, after: JobId | None, limit: int, tx: object) -> Page[Job]:
        async def look(connection: Connection) -> Sequence[Job]:
            return await self.store.state.list_blocked(connection, chain_id, after=after, limit=limit)

        return _page(await self.store.read(look, tx=tx), _checked(limit))

    async def blockers_of(self, job_id: JobId, *, tx: object) -> Sequence[Blocker]:
        async def look(connection: Connection) -> dict[JobId, list[Blocker]]:
            return await self.store.state.blockers_of(connection, [job_id])

        return (await self.store.read(look, tx=tx)).get(job_id, [])


def _checked(limit: int) -> int:
    if not 1 <= limit <= _MOST_PER_PAGE:
        raise ConfigurationError(f"limit={limit}: a page has 1 to {_MOST_PER_PAGE} items")
    return limit


def _page(items: Sequence[Any], limit: int) -> Page[Any]:
    return Page(items=items, next=items[-1].id if len(items) == limit else None)
