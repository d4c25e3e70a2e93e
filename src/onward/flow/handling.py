"""RUN: a locked job comes in, what its handler's answer means for it goes out."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from onward.flow.attributes import Attributes
from onward.flow.keys import milliseconds
from onward.flow.outcome import FanOut, Goto
from onward.flow.run import Run, enter
from onward.flow.stage import Stage
from onward.flow.store import NewFlowJob, StageLease, StageOutcome
from onward.model import new_ids
from onward.options import wrong_call
from onward.run.threads import Threads, call_handler


class Performance:
    """A handler at work, in a task or a thread. Whatever leaves it is kept here: event loops have uses of their own for
    some."""

    def __init__(self, stage: Stage, arguments: tuple[Any, ...], threads: Threads, tasks: asyncio.TaskGroup) -> None:
        self._handler = stage.handler
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_in_thread = not stage.signature.is_async
        """Then it cannot be cancelled: it goes on to its end."""
        handler = self._block if self.is_in_thread else stage.handler
        self.work = tasks.create_task(
            self._follow(call_handler(threads, handler, *arguments, is_async=not self.is_in_thread))
        )

    def _block(self, *arguments: Any) -> Any:
        try:
            return self._handler(*arguments)
        finally:
            self.is_in_thread = False

    async def _follow(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self.answer = await work
        except BaseException as error:  # noqa: BLE001 - around the user's handler
            self.error = error


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

    def begin(self, lease: StageLease, run: Run, threads: Threads, tasks: asyncio.TaskGroup) -> Performance:
        """Let the handler begin, in a task or a thread of its own; raises a FlowPayloadError."""
        job = self._asked.read(lease.attributes)
        enter(run)
        arguments: tuple[Any, ...] = (job, run) if self._stage.signature.wants_run else (job,)
        return Performance(self._stage, arguments, threads, tasks)

    def outcome(self, answer: Any, lease: StageLease) -> StageOutcome:
        """What the answer means for the job, or a FlowPayloadError."""
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
                return StageOutcome(attributes=attributes, next=answer.stage, delay=delay)
            case FanOut():
                if stage.children is None:
                    self._plain.refuse("FanOut, and the stage does not say where children begin: children='…'")
                attributes, _ = self._beside_children.write(answer.result)
                return StageOutcome(
                    attributes=attributes,
                    next=stage.next,
                    children=self._children(answer, stage.children, lease),
                    collect_as=stage.collect,
                )
            case _:
                attributes, text = self._plain.write(answer)
                result = text if lease.is_child and stage.next is None else None
                return StageOutcome(attributes=attributes, next=stage.next, result=result)

    def _children(self, fan_out: FanOut[Any, Any], stage: str, lease: StageLease) -> list[NewFlowJob]:
        facts: Mapping[str, str] = {"correlation-id": lease.correlation_id, "parent-id": lease.job_id}
        if problem := wrong_call(len(fan_out.children), 0):
            self._child.refuse(problem)
        ids = new_ids(len(fan_out.children))
        return [
            NewFlowJob(
                id=str(child_id),
                stage=stage,
                attributes=self._child.write(self._child.convert(child))[0],
                facts={**facts, "child-number": str(number)},
            )
            for number, (child_id, child) in enumerate(zip(ids, fan_out.children, strict=True), start=1)
        ]
