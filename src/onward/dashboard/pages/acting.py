"""What can be done to chains: each is asked first, and says what it did."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
from starlette.datastructures import QueryParams

from onward.client.app import Onward
from onward.client.bulk import Changed, causes, change_in_batches, matching
from onward.dashboard.filters import filters_of
from onward.dashboard.page import Action, Form, Question
from onward.dashboard.refusal import NotThere, Refusal
from onward.define.sealing import PayloadCodec
from onward.errors import ChainNotFound
from onward.model import Job, JobStatus

_MOST_NAMED = 5
_MOST_TOLD = 3
_MOST_AT_ONCE = 10_000
_COUNTED_WITHIN = 0.9
"""Seconds for those who are asked; what is done then takes the time it takes."""
_OPEN = (JobStatus.BLOCKED, JobStatus.PENDING, JobStatus.RUNNING)


def _chains(count: int) -> str:
    return f"{count:,} chain{'s' * (count != 1)}"


class _Change:
    """A change of chains that were ticked, or of all that a filter finds."""

    def __init__(
        self,
        word: str,
        done: str,
        statuses: Sequence[JobStatus],
        change: Callable[[Onward], Callable[..., Awaitable[int]]],
        details: Sequence[str],
        *,
        is_final: bool = False,
        cascades: bool = False,
        oldest_first: bool = False,
    ) -> None:
        self._word, self._done, self._statuses, self._change = word, done, statuses, change
        self._details, self._is_final, self._cascades = details, is_final, cascades
        self._oldest_first = oldest_first

    async def ask(self, form: Form) -> Question:
        ids: list[UUID] = []
        try:
            async with asyncio.timeout(_COUNTED_WITHIN):
                async for id in self._chosen(form):
                    ids.append(id)
            many = f"{self._word} {_chains(len(ids))}?"
            if not ids:
                raise NotThere(f"No chain was found to {self._word.lower()}.")
        except TimeoutError:
            many = f"{self._word} all chains that match? There are more than {len(ids):,}; counting them takes long."
        named = [f"Chain {id}" for id in ids[:_MOST_NAMED]]
        more = [f"and {len(ids) - _MOST_NAMED:,} more"] if len(ids) > _MOST_NAMED else []
        return Question(
            words=many,
            button=self._word,
            details=[*self._details, *named, *more],
            is_final=self._is_final,
            options=[("cascade", "Also the chains that these wait for")] if self._cascades else (),
        )

    async def do(self, form: Form) -> str:
        ids = [id async for id in self._chosen(form)]
        change: Any = self._change(form.app)
        if self._cascades and form.maybe("cascade"):
            change = partial(change, cascade=True)
        ordered = ids[:: -1 if self._oldest_first and "chain" not in form.fields else 1]
        found, advance = "chain" not in form.fields, form.progress.advance
        words = told(self._done, await change_in_batches(change, ordered, found=found, progress=advance))
        return words + (" That is as many as can be done at once." if len(ids) == _MOST_AT_ONCE else "")

    async def _chosen(self, form: Form) -> AsyncIterator[UUID]:
        """Those that were ticked, or all that a filter finds, newest first."""
        if "chain" in form.fields:
            for id in form.ids("chain"):
                yield id
            return
        if form.maybe("all") is None:
            raise NotThere("Nothing was chosen: tick the chains first.")
        filters: Any = filters_of(as_query(form), chains=True)
        wanted = [status for status in filters.get("status", self._statuses) if status in self._statuses]
        if not wanted:
            raise Refusal(400, f"{self._word} is for chains that are {', '.join(self._statuses)}.")
        filters["status"] = wanted
        count = 0
        async for id in matching(form.app, filters):
            yield id
            count += 1
            if count == _MOST_AT_ONCE:
                return


def as_query(form: Form) -> QueryParams:
    """The filter that a form carries."""
    return QueryParams([(name, value) for name, values in form.fields.items() for value in values])


def told(done: str, changed: Changed) -> str:
    """What has come of a change, in words."""
    words = f"{done} {_chains(changed.count)}."
    for id, why in changed.refused[:_MOST_TOLD]:
        words += f" Not {id}: {why}."
    more = len(changed.refused) - _MOST_TOLD
    return words + (f" And {more:,} more were refused." if more > 0 else "")


# -- completing


async def _ask_complete(form: Form) -> Question:
    chain = await form.app.find_chain(form.ids("chain")[0])
    if chain is None:
        raise ChainNotFound(form.ids("chain"))
    _output_of(form.app, chain.current)
    return Question(
        words=f"Complete the chain at {chain.current.type_name}, without its handler?",
        button="Complete",
        details=[
            f"Chain {chain.id}",
            "The chain ends with the output you give, as if its last step had returned it. What waits for it goes on.",
            "If a worker runs it at this moment, what it returns is dropped.",
        ],
        is_final=True,
        text=("output", "Output, as JSON"),
    )


async def _complete(form: Form) -> str:
    id = form.ids("chain")[0]
    text = form.maybe("output") or "null"
    async with form.app.complete(id) as completion:
        job = completion.job
        assert job is not None
        codec = _output_of(form.app, job)
        try:
            output = codec.bare.decode(msgspec.json.encode(msgspec.json.decode(text.encode())))
        except (msgspec.DecodeError, RecursionError) as problem:
            raise Refusal(400, f"The output is no JSON: {problem}. Text is written with quotes.") from None
        await completion.done(output)
    return f"Completed chain {id} at {job.type_name}."


def may_be_completed(app: Onward, job: Job) -> bool:
    """Whether there is an output with which a chain may end that has come to this job."""
    kind = app.registry.get(job.type_name)
    return kind is not None and kind.output is not None


def _output_of(app: Onward, job: Job) -> PayloadCodec:
    kind = app.registry.get(job.type_name)
    if kind is None:
        raise Refusal(409, f"The app of this dashboard does not know the type {job.type_name}.")
    if kind.output is None:
        raise Refusal(409, f"{job.type_name} always goes on to another step, so no chain ends there with an output.")
    return kind.output


# -- a group of failed jobs


async def _group(form: Form) -> list[UUID]:
    found, _ = await causes(form.app, filters_of(as_query(form)), most=_MOST_AT_ONCE)
    for one in found:
        if one.cause.id == form.one("group"):
            return one.chain_ids[::-1]
    raise NotThere("No failed jobs are in this group any more.")


async def _ask_replay(form: Form) -> Question:
    try:
        async with asyncio.timeout(_COUNTED_WITHIN):
            words = f"Retry {_chains(len(await _group(form)))} of this group?"
    except TimeoutError:
        words = "Retry all chains of this group? Counting them takes long."
    return Question(
        words=words,
        button="Retry",
        details=["Each runs again with the code that is deployed now."],
    )


async def _replay(form: Form) -> str:
    ids = await _group(form)
    words = f"group {form.one('group')}"
    replay = form.replays.begin(ids, words=words, by=form.visitor.name)

    def advance(count: int) -> None:
        replay.advance(count)
        form.progress.advance(count)

    changed = await change_in_batches(form.app.retry, ids, found=True, progress=advance)
    replay.refused = len(changed.refused)
    return f"{told('Retried', changed)} Below Failed it says what comes of them."


_FIELDS = ("chain", "all", "type", "status", "reason", "error", "error_type", "older", "newer", "root", "cascade")
_CHANGES = {
    "trigger": _Change(
        "Run now",
        "Triggered",
        (JobStatus.PENDING,),
        lambda app: app.trigger,
        ["What is scheduled for later becomes due at once."],
    ),
    "cancel": _Change(
        "Cancel",
        "Cancelled",
        _OPEN,
        lambda app: app.cancel,
        ["What waits fails at once. What runs is asked to stop."],
        is_final=True,
        cascades=True,
    ),
    "retry": _Change(
        "Retry",
        "Retried",
        (JobStatus.FAILED,),
        lambda app: app.retry,
        ["Each runs again with the code that is deployed now. What failed only through it waits again."],
        oldest_first=True,
    ),
    "delete": _Change(
        "Delete",
        "Deleted",
        tuple(JobStatus),
        lambda app: app.delete,
        ["Gone for good, with inputs, outputs and errors."],
        is_final=True,
        cascades=True,
    ),
}
ACTIONS = (
    *(Action(name=name, ask=change.ask, do=change.do, records=_FIELDS) for name, change in _CHANGES.items()),
    Action(name="complete", ask=_ask_complete, do=_complete, records=["chain"]),
    Action(name="replay", ask=_ask_replay, do=_replay, records=["group", *_FIELDS]),
)
"""What can be done to chains."""
