"""RUN: a locked job comes in, what its handler's answer means for it goes out."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from typing import Any

from onward.flow.attributes import Attributes
from onward.flow.keys import milliseconds
from onward.flow.outcome import FanOut, Goto
from onward.flow.run import Run, enter
from onward.flow.stage import Stage
from onward.flow.store import Lease, NewJob, Outcome
from onward.model import new_ids


class Handling:
    """Runs the handler of one stage."""

    def __init__(self, flow: str, stage: Stage) -> None:
        self._stage, signature = stage, stage.signature

        def attributes(kind: Any, part: str) -> Attributes:
            return Attributes(kind, flow=flow, stage=stage.name, part=part)

        self._asked = attributes(signature.attributes, "attributes")
        self._plain = attributes(signature.results, "result")
        self._goto = attributes(signature.goto, "result")
        self._child = attributes(signature.children, "child")
        self._beside_children = attributes(signature.beside_children, "result")

    @property
    def names(self) -> tuple[str, ...]:
        """The attributes to fetch."""
        return tuple(self._asked.names)

    async def perform(self, lease: Lease, run: Run, threads: Executor) -> Outcome:
        """Call the handler; raises what it raises, or a FlowPayloadError."""
        job = self._asked.read(lease.attributes)
        enter(run)
        arguments = (job, run) if self._stage.signature.wants_run else (job,)
        if self._stage.signature.is_async:
            answer = await self._stage.handler(*arguments)
        else:
            answer = await self._in_thread(arguments, threads)
        return self._outcome(answer, lease)

    async def _in_thread(self, arguments: tuple[Any, ...], threads: Executor) -> Any:
        """A thread cannot be cancelled: it is waited for, and what comes too late is dropped by Redis."""
        call = partial(copy_context().run, self._stage.handler, *arguments)
        work = asyncio.get_running_loop().run_in_executor(threads, call)
        while True:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if work.cancelled():
                    raise

    def _outcome(self, answer: Any, lease: Lease) -> Outcome:
        stage = self._stage
        match answer:
            case Goto():
                if answer.stage not in stage.goto:
                    declared = ", ".join(map(repr, stage.goto)) or "none"
                    self._plain.refuse(
                        f"Goto({answer.stage!r}) is not among the stages it may go to: goto=[…] has {declared}"
                    )
                attributes, _ = self._goto.write(answer.result)
                delay = None if answer.delay is None else milliseconds(answer.delay)
                return Outcome(attributes=attributes, next=answer.stage, delay=delay)
            case FanOut():
                if stage.children is None:
                    self._plain.refuse("FanOut, and the stage does not say where children begin: children='…'")
                attributes, _ = self._beside_children.write(answer.result)
                return Outcome(
                    attributes=attributes,
                    next=stage.next,
                    children=self._children(answer, stage.children, lease),
                    collect_as=stage.collect,
                )
            case _:
                attributes, text = self._plain.write(answer)
                result = text if lease.is_child and stage.next is None else None
                return Outcome(attributes=attributes, next=stage.next, result=result)

    def _children(self, fan_out: FanOut[Any, Any], stage: str, lease: Lease) -> list[NewJob]:
        facts: Mapping[str, str] = {"correlation-id": lease.correlation_id, "parent-id": lease.job_id}
        ids = new_ids(len(fan_out.children))
        return [
            NewJob(
                id=str(child_id),
                stage=stage,
                attributes=self._child.write(self._child.convert(child))[0],
                facts={**facts, "child-number": str(number)},
            )
            for number, (child_id, child) in enumerate(zip(ids, fan_out.children, strict=True), start=1)
        ]
