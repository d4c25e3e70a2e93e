"""The attempt whose handler runs here: where new chains come from, and what log lines say of themselves."""

from contextvars import ContextVar
from typing import Protocol

from onward.model import ChainId, JobId, WorkerId


class Running(Protocol):
    """An attempt, as those see it who work for it."""

    @property
    def job_id(self) -> JobId: ...
    @property
    def chain_id(self) -> ChainId: ...
    @property
    def root_id(self) -> JobId: ...
    @property
    def job_type(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def worker(self) -> WorkerId: ...
    def masked(self, text: str) -> str:
        """A text without what is secret in its input; the very same, where nothing is."""
        ...


current_attempt: ContextVar[Running | None] = ContextVar("onward_attempt", default=None)
