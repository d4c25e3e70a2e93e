"""What is wrong with middleware is said when the app is built."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from onward.define.attempt import Attempt, SyncTransaction
from onward.define.registry import Registry
from onward.define.slice import Slice
from onward.errors import DefinitionError


class Timed:
    @asynccontextmanager
    async def around_handler(self, attempt: Attempt[Any]) -> AsyncIterator[None]:
        yield

    @contextmanager
    def around_complete(self, attempt: Attempt[Any], tx: Any) -> Iterator[None]:
        yield


class Bare:
    async def around_handler(self, attempt: Attempt[Any]) -> None: ...

    async def around_prepare(self, attempt: Attempt[Any], tx: Any) -> AsyncIterator[None]:
        yield

    def around_complete(self, attempt: Attempt[Any], tx: Any) -> Iterator[None]:
        yield


class Misspelled:
    @contextmanager
    def around_completion(self, attempt: Attempt[Any], tx: Any) -> Iterator[None]:
        yield


class Empty:
    pass


def slice_with(*middleware: Any) -> Slice:
    orders = Slice("orders", middleware=middleware)

    @orders.job("ship")
    async def ship(attempt: Attempt[str]) -> None: ...

    @orders.job("pack")
    async def pack(attempt: Attempt[str]) -> None: ...

    return orders


def problems_of(slice: Slice) -> tuple[str, ...]:
    with pytest.raises(DefinitionError) as refused:
        Registry([slice])
    return refused.value.problems


def test_the_middleware_of_a_slice_is_that_of_its_types() -> None:
    timed = Timed()

    registry = Registry([slice_with(timed)])

    assert registry["orders.ship"].middleware == (timed,)


def test_hooks_that_return_no_context_manager_are_named_once_per_slice() -> None:
    advice = "returns no context manager: put @contextmanager or @asynccontextmanager above it"

    assert problems_of(slice_with(Bare())) == (
        f"slice 'orders': Bare.around_handler {advice}",
        f"slice 'orders': Bare.around_prepare {advice}",
        f"slice 'orders': Bare.around_complete {advice}",
    )


def test_what_is_no_middleware_is_refused() -> None:
    hooks = "around_handler, around_prepare, around_complete"

    assert problems_of(slice_with(Empty(), Timed, Misspelled())) == (
        f"slice 'orders': Empty has none of the hooks {hooks}",
        "slice 'orders': Timed is a class: middleware are instances, Timed(…)",
        f"slice 'orders': Misspelled.around_completion is not among the hooks {hooks}",
    )


def test_async_hooks_do_not_fit_def_handlers() -> None:
    orders = slice_with(Timed())

    @orders.job("print")
    def print_label(attempt: Attempt[str, SyncTransaction]) -> None: ...

    assert problems_of(orders) == (
        "orders.print: its def handler runs in a thread, but Timed.around_handler needs an event loop: "
        "use @contextmanager",
    )
