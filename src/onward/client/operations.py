"""What a client can do, written once: `Onward` awaits these operations, `app.sync` runs them to their end."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

from onward.client.awaiting import WaitFor
from onward.client.completion import Completion, current_job
from onward.define.registry import Registry
from onward.define.request import NewChain
from onward.errors import ChainFailed, ChainNotFailed, ChainNotFound, ConfigurationError
from onward.lifecycle.after_commit import Effects
from onward.lifecycle.context import refuse_inside_transaction
from onward.lifecycle.start import plan_chains, start_jobs
from onward.lifecycle.store import Store
from onward.model import Blocker, Chain, ChainId, CompletedJob, FailedJob, Job, JobId, Page
from onward.state.contract import Change, Filter, Started
from onward.state.driver import Connection

_MOST_PER_PAGE = 1_000


class Operations:
    """The operations of a client on one store."""

    def __init__(self, registry: Registry, store: Store, wait_for: WaitFor) -> None:
        self.registry, self.store = registry, store
        self._wait_for = wait_for

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
        await self._wait_for(chain_id, timeout)
        return await self._output(chain_id)

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

    async def cancel(self, chain_ids: Sequence[ChainId], *, tx: object) -> None:
        """Fail waiting jobs, ask running ones to stop; chains that have ended are left as they are."""
        changes = await self._change(self.store.state.cancel, chain_ids, "cancel", tx)
        touched = {change.chain_id for change in changes}
        await self._ended([chain_id for chain_id in chain_ids if chain_id not in touched], tx)

    async def retry(self, chain_ids: Sequence[ChainId], *, tx: object) -> None:
        """Bring failed chains back."""
        changes = await self._change(self.store.state.retry, chain_ids, "retry", tx)
        touched = {change.chain_id for change in changes}
        left = [chain_id for chain_id in chain_ids if chain_id not in touched]
        if left:
            await self._ended(left, tx)
            raise ChainNotFailed(left)

    async def trigger(self, chain_ids: Sequence[ChainId], *, tx: object) -> None:
        """Run scheduled jobs now."""
        changes = await self._change(self.store.state.trigger, chain_ids, "trigger", tx)
        touched = {change.chain_id for change in changes}
        await self._ended([chain_id for chain_id in chain_ids if chain_id not in touched], tx)

    async def delete(self, chain_ids: Sequence[ChainId], *, cascade: bool, tx: object) -> int:
        """Delete whole chains; how many."""

        async def delete(connection: Connection, ids: Sequence[ChainId]) -> Sequence[Change]:
            return await self.store.state.delete(connection, ids, cascade=cascade)

        changes = await self._change(delete, chain_ids, "delete", tx)
        return len({change.chain_id for change in changes})

    async def _change(
        self,
        change: Callable[[Connection, Sequence[ChainId]], Awaitable[Sequence[Change]]],
        chain_ids: Sequence[ChainId],
        doing: str,
        tx: object,
    ) -> Sequence[Change]:
        async def operation(connection: Connection) -> tuple[Sequence[Change], Effects]:
            changes = await change(connection, chain_ids)
            return changes, self.store.consequences.of_changes(changes)

        return await self.store.write(operation, tx=tx, doing=doing)

    async def _ended(self, chain_ids: Sequence[ChainId], tx: object) -> dict[ChainId, bool]:
        """Whether chains have ended; raises for those that do not exist."""

        async def look(connection: Connection) -> dict[ChainId, bool]:
            return await self.store.state.ended_chains(connection, chain_ids)

        ended = await self.store.read(look, tx=tx)
        missing = [chain_id for chain_id in chain_ids if chain_id not in ended]
        if missing:
            raise ChainNotFound(missing)
        return ended

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
