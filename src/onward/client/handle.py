"""Typed handles of chains."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

from onward.client.arguments import Asked
from onward.client.operations import Operations
from onward.define.job_type import JobType
from onward.model import Chain, ChainId
from onward.state.driver import run_now

O_co = TypeVar("O_co", covariant=True)
I_co = TypeVar("I_co", covariant=True, default=Any)


class ChainHandle(msgspec.Struct, Generic[O_co, I_co], frozen=True, eq=False):
    """A chain and the types of its output and input. Made by `app.start(…)` and `app.chain(…)`.

    It knows its type: used for a chain that began with another type, it raises ChainOfAnotherType.
    """

    _here: Callable[[], Operations]
    """The app's, if it is open here."""
    job_type: JobType[Any, O_co]
    id: ChainId
    duplicate: bool = False
    """Whether `start` found a chain with the same deduplication key instead of starting one."""

    async def wait(self, *, timeout: timedelta | None = None) -> O_co:
        """The output, once the chain has completed. Raises ChainFailed, ChainNotFound and WaitTimeout."""
        output: O_co = await self._here().wait(_asked(self), timeout)
        return output

    async def get(self, *, tx: object = None) -> Chain:
        """The chain as it is stored."""
        return await self._here().get_chain(_asked(self), tx=tx)

    def __repr__(self) -> str:
        return f"<ChainHandle {self.job_type.name!r} {self.id}>"


class SyncChainHandle(msgspec.Struct, Generic[O_co, I_co], frozen=True, eq=False):
    """`ChainHandle` for code without an event loop."""

    _operations: Operations
    job_type: JobType[Any, O_co]
    id: ChainId
    duplicate: bool = False
    """Whether `start` found a chain with the same deduplication key instead of starting one."""

    def wait(self, *, timeout: timedelta | None = None) -> O_co:
        """The output, once the chain has completed. Raises ChainFailed, ChainNotFound and WaitTimeout."""
        output: O_co = run_now(self._operations.wait(_asked(self), timeout))
        return output

    def get(self, *, tx: object = None) -> Chain:
        """The chain as it is stored."""
        return run_now(self._operations.get_chain(_asked(self), tx=tx))

    def __repr__(self) -> str:
        return f"<SyncChainHandle {self.job_type.name!r} {self.id}>"


def _asked(handle: ChainHandle[Any] | SyncChainHandle[Any]) -> Asked:
    return Asked([handle.id], {handle.id: handle.job_type.name})
