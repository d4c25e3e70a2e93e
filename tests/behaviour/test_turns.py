"""How threads share the connections of a pool of ours: `def` handlers, and whoever uses `app.sync`."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from onward.errors import ConfigurationError
from onward.state.driver import run_now
from onward.state.postgres import psycopg_turns
from onward.state.postgres.psycopg import SyncPsycopgDriver
from onward.state.postgres.psycopg_connection import PsycopgConnection


@pytest.fixture
def driver(postgres_dsn: str) -> Iterator[SyncPsycopgDriver]:
    driver = SyncPsycopgDriver(postgres_dsn, pool_size=1)
    run_now(driver.open())
    yield driver
    run_now(driver.close())


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@contextmanager
def lent(driver: SyncPsycopgDriver) -> Iterator[PsycopgConnection]:
    block: Any = driver.connection()
    connection = run_now(block.__aenter__())
    try:
        yield connection
    except BaseException as error:
        run_now(block.__aexit__(type(error), error, error.__traceback__))
        raise
    else:
        run_now(block.__aexit__(None, None, None))


def backend(connection: PsycopgConnection) -> int:
    answer = run_now(connection.query("SELECT pg_backend_pid()", {}))
    return int(answer.rows[0][0])


def until(condition: Callable[[], Any]) -> None:
    for _ in range(1_000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen")


def in_line(driver: SyncPsycopgDriver) -> int:
    assert driver._turns is not None
    return len(driver._turns._line)


def test_a_connection_says_whether_it_was_awaited(driver: SyncPsycopgDriver, threads: ThreadPoolExecutor) -> None:
    def use() -> bool:
        with lent(driver) as connection:
            return connection.was_awaited

    with lent(driver):
        second = threads.submit(use)
        until(lambda: in_line(driver) == 1)

    assert second.result(timeout=5) is True
    assert use() is False


def test_who_waits_gets_the_connection_that_is_given_back(
    driver: SyncPsycopgDriver, threads: ThreadPoolExecutor
) -> None:
    order = list[int]()

    def use(number: int) -> int:
        with lent(driver) as connection:
            order.append(number)
            return backend(connection)

    with lent(driver) as connection:
        first = backend(connection)
        others = list[Any]()
        for number in range(3):
            others.append(threads.submit(use, number))
            until(lambda number=number: in_line(driver) == number + 1)

    assert [other.result() for other in others] == [first] * 3
    assert order == [0, 1, 2]


def test_what_the_last_one_set_is_gone_for_who_waited(driver: SyncPsycopgDriver, threads: ThreadPoolExecutor) -> None:
    def read() -> str:
        with lent(driver) as connection:
            run_now(connection.begin())
            answer = run_now(connection.query("SELECT current_setting('work_mem')", {}))
            run_now(connection.commit())
            return str(answer.rows[0][0])

    usual = read()
    with lent(driver) as connection:
        run_now(connection.query("SET work_mem = '77kB'", {}))
        waiting = threads.submit(read)
        until(lambda: in_line(driver))

    assert waiting.result() == usual != "77kB"


@pytest.mark.parametrize("how", ["failed", "kept", "lost"])
def test_a_connection_that_may_not_be_lent_again_is_not_handed_on(
    driver: SyncPsycopgDriver, threads: ThreadPoolExecutor, how: str
) -> None:
    def use() -> PsycopgConnection:
        with lent(driver) as connection:
            assert backend(connection)
            return connection

    waiting: Any = None
    try:
        with lent(driver) as first:
            waiting = threads.submit(use)
            until(lambda: in_line(driver))
            if how == "failed":
                raise ZeroDivisionError
            if how == "kept":
                assert first.raw
            else:
                first.cut_off()
    except ZeroDivisionError:
        pass

    assert waiting.result() is not first


def test_who_waits_for_a_pool_that_is_closed_is_told(driver: SyncPsycopgDriver, threads: ThreadPoolExecutor) -> None:
    def use() -> None:
        with lent(driver):
            pass

    with lent(driver):
        waiting = threads.submit(use)
        until(lambda: in_line(driver))
        run_now(driver.close())
        with pytest.raises(ConfigurationError, match="not open"):
            waiting.result()


def test_who_waits_without_a_server_is_told_why(
    driver: SyncPsycopgDriver, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody_there() -> None:
        raise ConnectionError("no server")

    assert driver._turns is not None
    monkeypatch.setattr(driver._turns, "_look_after", 0.01)
    monkeypatch.setattr(driver._turns, "_look", nobody_there)

    def use() -> None:
        with lent(driver):
            pass

    with lent(driver):
        with pytest.raises(ConnectionError):
            threads.submit(use).result()
        assert in_line(driver) == 0

    with lent(driver) as connection:
        assert backend(connection)


def test_who_is_interrupted_with_his_turn_come_passes_it_on(
    driver: SyncPsycopgDriver, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        """The lock of one who is interrupted just as his turn comes."""

        def __init__(self) -> None:
            self._come = threading.Event()

        def acquire(self, timeout: float = 0) -> bool:
            if timeout:
                self._come.wait()
                raise KeyboardInterrupt
            return True

        release = property(lambda self: self._come.set)

    waiting_made = psycopg_turns._Waiting

    def make() -> Any:
        made = waiting_made()
        if threading.current_thread().name == "interrupted":
            made.turn = Interrupted()  # type: ignore[assignment]
        return made

    monkeypatch.setattr(psycopg_turns, "_Waiting", make)
    was_interrupted = list[bool]()

    def interrupted() -> None:
        try:
            with lent(driver):
                was_interrupted.append(False)
        except KeyboardInterrupt:
            was_interrupted.append(True)

    thread = threading.Thread(target=interrupted, name="interrupted")
    with lent(driver) as connection:
        first = backend(connection)
        thread.start()
        until(lambda: in_line(driver) == 1)
        second = threads.submit(lambda: _backend_of(driver))
        until(lambda: in_line(driver) == 2)
    thread.join()

    assert was_interrupted == [True]
    assert second.result() == first
    with lent(driver) as connection:
        assert backend(connection)


def _backend_of(driver: SyncPsycopgDriver) -> int:
    with lent(driver) as connection:
        return backend(connection)


def test_who_looks_for_the_server_just_as_his_turn_comes_passes_it_on(
    driver: SyncPsycopgDriver, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He is out of the line a moment before the connection is his."""
    looks, is_out, has_left = threading.Event(), threading.Event(), threading.Event()
    turns = driver._turns
    assert turns is not None

    class Slow(psycopg_turns._Waiting):
        """Python may change over to another thread before it is handed the connection."""

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "connection" and value is not None:
                is_out.set()
                if not turns._lock.locked():
                    has_left.wait()
            super().__setattr__(name, value)

    async def nobody_there() -> None:
        looks.set()
        is_out.wait()
        raise ConnectionError("no server")

    monkeypatch.setattr(psycopg_turns, "_Waiting", Slow)
    monkeypatch.setattr(turns, "_look_after", 0.01)
    monkeypatch.setattr(turns, "_look", nobody_there)

    def use() -> None:
        try:
            with lent(driver):
                pass
        finally:
            has_left.set()

    with lent(driver):
        looking = threads.submit(use)
        looks.wait()
    with pytest.raises(ConnectionError):
        looking.result()

    with lent(driver) as connection:
        assert backend(connection)
