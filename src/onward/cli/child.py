"""A worker process that another process has started."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

from onward.cli.steering import Stop


class Child:
    """It is exec'd and shares nothing but standard output and error. It has a pipe from here: a byte says how hard to
    stop, and its end, that this process is gone. It is the head of a process group, so that Ctrl-C comes from here.
    """

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int) -> None:
        self.process, self._lifeline = process, lifeline

    @classmethod
    async def started(cls, command: Sequence[str]) -> "Child":
        """Raises OSError if it cannot be."""
        theirs, ours = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command, "--lifeline", str(theirs),
                stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs], process_group=0,
            )  # fmt: skip
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        return cls(process, ours)

    async def ended(self) -> int:
        """Wait for its end; its exit code."""
        try:
            return await self.process.wait()
        finally:
            os.close(self._lifeline)

    def stop(self, how: Stop) -> None:
        """While it has not ended."""
        if how is Stop.END:
            with suppress(ProcessLookupError):  # it has just ended, and whoever waits for it is yet to be told
                self.process.kill()
        else:
            with suppress(BrokenPipeError):
                os.write(self._lifeline, bytes([how]))
