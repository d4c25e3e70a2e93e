"""What a client can do, written once: `Onward` awaits these operations, `app.sync` runs them to their end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from onward.client.arguments import Asked, checked_id
from onward.client.awaiting import WaitFor
from onward.client.completion import Completion, current_job
from onward.client.explaining import explanation
from onward.client.history import page_of_history
from onward.client.pruning import PruneOptions, count, prune, rules_of
from onward.client.queries import page, page_of, shown
from onward.client.stats import stats
from onward.client.waiting import Deadline, why_not_ended
from onward.define.registry import Registry
from onward.define.sealing import shown_blocker, shown_chain, shown_job
from onward.errors import (
    ChainFailed,
    ChainNotFailed,
    ChainNotFound,
    WaitTimeout,
    require,
)
from onward.lifecycle.effects import Effects
from onward.lifecycle.pruning import history_of
from onward.lifecycle.store import Store, TransactionBlock
from onward.lifecycle.transaction import refuse_inside_transaction
from onward.model import (
    Blocker,
    Chain,
    ChainId,
    CompletedJob,
    FailedJob,
    FailureReason,
    Job,
    JobId,
    JobStatus,
    Page,
)
from onward.notify.contract import Hint, HintKind
from onward.operating import Explanation, Stats, WorkerInfo
from onward.options import wrong_duration, wrong_flag, wrong_number
from onward.state.command import Operation, Steps
from onward.state.contract import Change, Filter, JobCounts
from onward.state.driver import Connection
from onward.state.history import HistoryFilter

_MOST_BLOCKERS_TOLD = 10
"""A chain may fail through one that failed through another: so far the message goes back."""


class Operations:
    """The operations of a client on one store."""

    def __init__(self, registry: Registry, store: Store, wait_for: WaitFor) -> None:
        self.registry, self.store = registry, store
        self._wait_for = wait_for
        self.tasks: asyncio.TaskGroup | None = None
        """The app's, while it is open; none without an event loop."""

    # -- wait

    async def wait(self, asked: Asked, timeout: timedelta | None) -> Any:
        """The output of a chain once it has completed."""
        require(None if timeout is None else wrong_duration("timeout", timeout, most=timedelta.max))
        refuse_inside_transaction("wait()", joins=False)
        deadline = Deadline(asked.ids[0], timeout, self.tasks)
        chain = await deadline.bound(self._stored_chain(asked, tx=None))
        if chain.ended_at is None:
            chain = await self._awaited(asked, deadline)
        return await deadline.bound(self._output(chain))

    async def _awaited(self, asked: Asked, deadline: Deadline) -> Chain:
        try:
            await self._wait_for(asked.ids[0], deadline.remaining)
        except WaitTimeout:
            chain = await deadline.bound(self._stored_chain(asked, tx=None))
            if chain.ended_at is None:
                chain = self._shown_chain(chain)
                raise deadline.passed(chain.current, await why_not_ended(self.store, chain, deadline)) from None
            return chain
        return await deadline.bound(self._stored_chain(asked, tx=None))

    async def _output(self, chain: Chain) -> Any:
        job = chain.current
        if isinstance(job, FailedJob):
            raise await self._failure(chain, self.shown_job(job))
        assert isinstance(job, CompletedJob)
        job_type = self.registry.find(job.type_name)
        return job_type.read_output(msgspec.json.encode(job.output), job.payload_version, chain.id)

    async def _failure(self, chain: Chain, job: Job, depth: int = 0) -> ChainFailed:
        """What to raise of a failed chain: with that of the chain through which it failed, if there is one."""
        assert isinstance(job, FailedJob)
        through = None
        if job.reason is FailureReason.BLOCKER and depth < _MOST_BLOCKERS_TOLD:
            blockers = await self.blockers_of(job.id, tx=None)
            failed = next((one for one in blockers if one.status is JobStatus.FAILED), None)
            cause = await self.find_chain(failed.chain_id, tx=None) if failed else None
            if cause is not None and isinstance(cause.current, FailedJob):
                through = await self._failure(cause, cause.current, depth + 1)
        return ChainFailed(
            chain_id=chain.id,
            job_id=job.id,
            job_type=job.type_name,
            reason=job.reason,
            error=job.last_error,
            blocker=through,
        )

    # -- complete without a worker

    @asynccontextmanager
    async def complete(self, asked: Asked, *, tx: object) -> AsyncIterator[Completion[Any, Any]]:
        """The job a chain has come to, locked until the transaction ends."""
        if tx is not None:
            yield await self._completion(asked, tx)
            return
        async with TransactionBlock(self.store) as own:
            yield await self._completion(asked, own)

    async def _completion(self, asked: Asked, tx: object) -> Completion[Any, Any]:
        job = await current_job(self.store, asked, tx)
        return Completion(self.registry, self.store, job, tx, began_with=asked.types.get(asked.ids[0]))

    # -- change

    async def cancel(self, asked: Asked, *, cascade: bool, tx: object) -> int:
        """Fail waiting jobs, ask running ones to stop; chains that have ended stay as they are. How many changed."""
        require(wrong_flag("cascade", cascade))
        return await self._change(self.store.state.cancel(asked.ids, cascade=cascade), asked, "cancel", tx)

    async def retry(self, asked: Asked, *, tx: object) -> int:
        """Bring failed chains back, all or none; returns how many came back."""
        retry = self.store.state.retry(asked.ids)
        return await self._change(retry, asked, "retry", tx, if_unknown=Steps(partial(self._retry_again, asked.ids)))

    async def _retry_again(self, chain_ids: Sequence[ChainId], connection: Connection) -> Sequence[Change]:
        """A retry may have gone through although its answer was lost."""
        try:
            return await connection.run(self.store.state.retry(chain_ids))
        except ChainNotFailed as refusal:
            if set(refusal.chain_ids) != set(chain_ids):
                raise
        chains = await connection.run(self.store.state.find_chains(chain_ids))
        return [Change(chain.current.id, chain.id, chain.current.type_name, "retried") for chain in chains]

    async def trigger(self, asked: Asked, *, tx: object) -> int:
        """Run scheduled jobs now; returns how many."""
        return await self._change(self.store.state.trigger(asked.ids), asked, "trigger", tx)

    async def delete(self, asked: Asked, *, cascade: bool, tx: object) -> int:
        """Delete whole chains; returns how many. One that does not exist is none."""
        require(wrong_flag("cascade", cascade))
        return await self._change(self.store.state.delete(asked.ids, cascade=cascade), asked, "delete", tx)

    async def _change(
        self,
        change: Operation[Sequence[Change]],
        asked: Asked,
        doing: str,
        tx: object,
        *,
        if_unknown: Operation[Sequence[Change]] | None = None,
    ) -> int:
        """Change chains; how many were changed, those included that fail, or come back, with the ones asked for.

        `if_unknown`: what to do in its place when it may have been done.
        """
        changes = await self.store.write(
            asked.checked(self.store.state, change),
            self.store.effects_of.changes,
            tx=tx,
            doing=doing,
            again=lambda is_unknown: asked.checked(self.store.state, (is_unknown and if_unknown) or change),
        )
        return len({change.chain_id for change in changes})

    async def prune(self, type_names: Sequence[str], options: PruneOptions) -> int:
        """Delete chains that were kept for long enough, or move them to the history; returns how many."""
        rules = rules_of(self.registry, type_names, options)
        refuse_inside_transaction("prune()", joins=False)
        act = count if options.get("dry_run") else prune
        return await act(self.store, rules, limit=options.get("limit"), progress=options.get("progress"))

    async def pause(self, type_names: Sequence[str], *, tx: object) -> None:
        """Have workers leave types alone. A name that the app does not know is most likely misspelled, unless it knows
        none: it was made for the database alone."""
        for name in type_names if self.registry else ():
            self.registry.find(name)
        await self.store.write(self.store.state.pause(type_names), lambda _: Effects(), tx=tx, doing="pause")

    async def resume(self, type_names: Sequence[str], *, tx: object) -> None:
        """Have workers take types again."""
        hints = [Hint(HintKind.READY, name) for name in type_names]
        effects = Effects(hints=hints)
        await self.store.write(self.store.state.resume(type_names), lambda _: effects, tx=tx, doing="resume")

    # -- read

    async def depths(self) -> dict[str, JobCounts]:
        names = list(self.registry)
        oldest = await self.store.read(self.store.state.oldest_due(names))
        counts = await self.store.read(self.store.state.count_jobs(names))
        return {name: msgspec.structs.replace(counts[name], oldest=oldest.get(name, 0.0)) for name in names}

    async def stats(self, *, more_than: int | None) -> Stats:
        require(None if more_than is None else wrong_number("more_than", more_than, least=1, most=2**63 - 1))
        return await self.store.read(stats(self.store.state, self.registry, more_than=more_than))

    async def paused(self, *, tx: object) -> Sequence[str]:
        return await self.store.read(self.store.state.paused(), tx=tx)

    async def workers(self, *, tx: object) -> Sequence[WorkerInfo]:
        return await self.store.read(self.store.state.workers.list(), tx=tx)

    async def find_job(self, job_id: JobId, *, tx: object) -> Job | None:
        checked_id("id", job_id)
        found = await self.store.read(self.store.state.find_jobs([job_id]), tx=tx)
        return self.shown_job(found[0]) if found else None

    async def find_chain(self, chain_id: ChainId, *, tx: object) -> Chain | None:
        found = await self._find_stored_chain(chain_id, tx=tx)
        return None if found is None else self._shown_chain(found)

    async def _find_stored_chain(self, chain_id: ChainId, *, tx: object) -> Chain | None:
        checked_id("id", chain_id)
        found = await self.store.read(self.store.state.find_chains([chain_id]), tx=tx)
        return found[0] if found else None

    async def explain(self, id: UUID, *, ageing: timedelta | None, tx: object) -> Explanation:
        checked_id("id", id)
        look = explanation(self.store.state, self.registry, self.shown_job, id, ageing=ageing)
        found = await self.store.read(look, tx=tx)
        if found is None:
            raise ChainNotFound([id])
        return found

    async def get_chain(self, asked: Asked, *, tx: object) -> Chain:
        """The one chain asked for, of the type that its handle says."""
        return self._shown_chain(await self._stored_chain(asked, tx=tx))

    async def _stored_chain(self, asked: Asked, *, tx: object) -> Chain:
        chain = await self._find_stored_chain(asked.ids[0], tx=tx)
        if chain is None:
            raise ChainNotFound(asked.ids)
        return asked.check(chain)

    async def jobs(self, filter: Filter, *, after: JobId | None, limit: int, tx: object) -> Page[Job]:
        state = self.store.state
        look = page_of(state, state.list_jobs, filter, after=after, limit=limit, by_chain=True)
        return shown(await self.store.read(look, tx=tx), self.shown_job)

    async def newest_failed(self, filter: Filter, *, most: int) -> tuple[Sequence[Job], bool]:
        """What matches among the jobs that failed, of which so many are looked at; and whether those are all."""
        state = self.store.state
        failed = msgspec.structs.replace(filter, statuses=[JobStatus.FAILED], indexed=True, newest=most)

        async def look(connection: Connection) -> tuple[Sequence[Job], bool]:
            found = await connection.run(state.list_jobs(failed, after=None, limit=most))
            return found, await connection.run(state.count_indexed(failed, most=most + 1)) <= most

        found, is_all = await self.store.read(Steps(look))
        return [self.shown_job(job) for job in found], is_all

    async def chains(self, filter: Filter, *, after: ChainId | None, limit: int, tx: object) -> Page[Chain]:
        state = self.store.state
        look = page_of(state, state.list_chains, filter, after=after, limit=limit, by_chain=False)
        return shown(await self.store.read(look, tx=tx), self._shown_chain)

    async def history(self, filter: HistoryFilter, *, after: ChainId | None, limit: int, tx: object) -> Page[Chain]:
        look = history_of(self.store.state).list(filter, after=after, limit=limit)
        return shown(page_of_history(filter, await self.store.read(look, tx=tx), limit), self._shown_chain)

    async def history_of(self, chain_id: ChainId, *, tx: object) -> Sequence[Job]:
        look = history_of(self.store.state).jobs_of(checked_id("id", chain_id))
        return [self.shown_job(job) for job in await self.store.read(look, tx=tx)]

    async def blocked_by(self, asked: Asked, *, after: JobId | None, limit: int, tx: object) -> Page[Job]:
        state = self.store.state
        look = asked.checked(state, state.list_blocked(asked.ids[0], after=after, limit=limit))
        return page([self.shown_job(job) for job in await self.store.read(look, tx=tx)], limit)

    async def blockers_of(self, job_id: JobId, *, tx: object) -> Sequence[Blocker]:
        checked_id("job_id", job_id)
        found = (await self.store.read(self.store.state.blockers_of([job_id]), tx=tx)).get(job_id, [])
        return [shown_blocker(one, self.registry.guard_of(one.current_type_name)) for one in found]

    def shown_job(self, job: Job) -> Job:
        """Without its secrets."""
        return shown_job(job, self.registry.guard_of(job.type_name))

    def _shown_chain(self, chain: Chain) -> Chain:
        return shown_chain(chain, self.registry.guard_of(chain.current.type_name))
