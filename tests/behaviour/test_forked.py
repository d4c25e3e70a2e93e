"""Apps and clients in the children of a process that forked: they say so, and can be opened anew."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from onward import Attempt, Onward, job
from onward.errors import ConfigurationError

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


@job("work")
async def work(attempt: Attempt[int]) -> int:
    return attempt.input


def in_a_child(check: Callable[[], None]) -> int:
    """Run a check in a forked process; its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            check()
            code = 0
        except BaseException:  # noqa: BLE001 - told, and the child must not go on with the tests
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_client_of_its_own_works_in_each_child(make_app: Any) -> None:
    app: Onward = make_app(work)

    with app.sync as client:
        client.start(work, 1)

        def check() -> None:
            with app.sync as own:
                own.start(work, 2)

        assert [in_a_child(check) for _ in range(3)] == [0, 0, 0]
        assert sorted(found.input for found in client.jobs()) == [1, 2, 2, 2]


async def test_an_app_opened_before_a_fork_says_so_in_the_child(opened: Any) -> None:
    app: Onward = await opened(work)
    await app.start(work, 1)

    def check() -> None:
        for call in (lambda: app.start(work, 2), app.open, app.close):
            with pytest.raises(ConfigurationError, match=r"opened in process \d+, before a fork"):
                call().send(None)

    assert in_a_child(check) == 0
    assert len(await app.jobs()) == 1
