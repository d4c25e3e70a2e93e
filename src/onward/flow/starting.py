"""What a caller wants started, as new jobs."""

import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from onward.errors import ConfigurationError
from onward.flow.attributes import Attributes
from onward.flow.keys import milliseconds
from onward.flow.options import Checks
from onward.flow.store import NewFlowJob
from onward.model import new_ids
from onward.options import wrong_call


class Starting:
    """Makes jobs for the first stage of a flow."""

    def __init__(self, flow: str, first: str, input: Any, *, has_priorities: bool) -> None:
        self._flow, self._first, self._has_priorities = flow, first, has_priorities
        self._attributes = Attributes(input, flow=flow, stage="", part="input")

    def jobs(
        self,
        inputs: Sequence[Any],
        *,
        id: str | None = None,
        correlation_id: str | None,
        delay: timedelta | None,
        priority: int,
    ) -> list[NewFlowJob]:
        """One for each input, or an error that says what is wrong."""
        checks = Checks(f"flow {self._flow!r}")
        checks.whole("priority", priority, least=0, most=1000)
        if delay is not None:
            checks.duration("delay", delay)
        for option, text in (("id", id), ("correlation_id", correlation_id)):
            if text is not None:
                checks.text(option, text)
        if priority and not self._has_priorities:
            raise ConfigurationError(f"priority={priority}: no stage of flow {self._flow!r} has priorities=True")
        facts = {"start-token": secrets.token_hex(8), **({"job-priority": str(priority)} if priority else {})}
        jobs: list[NewFlowJob] = []
        size = 0
        for fresh, input in zip(new_ids(len(inputs)), inputs, strict=True):
            job_id = id or str(fresh)
            if problem := wrong_call(len(inputs), size):
                self._attributes.refuse(problem)
            attributes, text = self._attributes.write(self._attributes.convert(input))
            size += len(text)
            jobs.append(
                NewFlowJob(
                    id=job_id,
                    stage=self._first,
                    attributes=attributes,
                    facts={"correlation-id": correlation_id or job_id, **facts},
                    delay=None if delay is None else milliseconds(delay),
                )
            )
        return jobs
