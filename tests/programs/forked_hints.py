"""A program whose client has sent hints before it forks: hints leave its child, and the parent afterwards.

forked_hints.py BROKER ADDRESS NAME
"""

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial

from onward import Attempt, Onward, job
from onward.notify.contract import Hint, HintKind, NotifyAdapter
from onward.notify.nats import NatsNotify
from onward.notify.redis import RedisNotify


@job("work")
def work(attempt: Attempt[str]) -> None: ...


def adapter(broker: str, address: str, name: str) -> Callable[[], NotifyAdapter]:
    """How to make one for these hints."""
    if broker == "redis":
        return partial(RedisNotify, address, channel=name)
    return partial(NatsNotify, address, subject=name)


def main(broker: str, address: str, name: str) -> None:
    warnings.simplefilter("ignore")  # newer Pythons warn of a fork with threads, which is what this is about
    app = Onward("memory://", jobs=[work], notify=adapter(broker, address, name)())
    hints = app._from_threads
    hints.post([Hint(HintKind.ENDED, "parent")])
    child = os.fork()
    if child == 0:
        hints.post([Hint(HintKind.ENDED, "child")])
        hints.release()
        os._exit(0)
    os.waitpid(child, 0)
    hints.post([Hint(HintKind.ENDED, "parent again")])
    hints.release()


if __name__ == "__main__":
    main(*sys.argv[1:])
