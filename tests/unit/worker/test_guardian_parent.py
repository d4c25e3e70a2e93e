"""How a guardian notices the death of its worker."""

import os
import subprocess
import sys

import pytest

_WORKER_DIES = """
import asyncio, os, sys
from onward.worker.guardian.child.parent import Parent

worker, (theirs, ours) = os.getpid(), os.pipe()
if os.fork():
    os._exit(0)  # the worker is killed; ours stays open in the guardian, as in something that the worker has forked
os.dup2(theirs, 0)

async def guard() -> None:
    parent, looks = Parent(), []
    hear = parent._hear
    parent._hear = lambda: (looks.append(1), hear())
    parent.watch(worker)
    fate = await parent.fate()
    for _ in range(100):
        await asyncio.sleep(0)
    print(fate.value, len(looks), flush=True)

asyncio.run(guard())
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells of a death by a descriptor")
def test_the_death_of_the_worker_is_noticed_once_and_does_not_keep_the_loop_busy() -> None:
    done = subprocess.run([sys.executable, "-c", _WORKER_DIES], capture_output=True, text=True, timeout=30)

    assert done.stdout.split()[0] == "died", done.stderr
    assert int(done.stdout.split()[1]) <= 2
