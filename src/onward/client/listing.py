"""Listings: one page when awaited, all of them when iterated."""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any, Generic, TypeVar
from uuid import UUID

from onward.model import Page

T = TypeVar("T")


class Listing(Generic[T]):
    """Jobs or chains, newest first: `await` it for a page, or go through all pages with `async for`.

    Pages are read as they are needed; what is created meanwhile is newer, and so is not among them.
    """

    def __init__(self, look: Callable[[UUID | None], Awaitable[Page[T]]], after: UUID | None) -> None:
        self._look, self._after = look, after

    def __await__(self) -> Generator[Any, Any, Page[T]]:
        return self._look(self._after).__await__()

    async def __aiter__(self) -> AsyncIterator[T]:
        page = await self
        while True:
            for item in page:
                yield item
            if page.next is None:
                return
            page = await self._look(page.next)


def every(look: Callable[[UUID | None], Page[T]], after: UUID | None) -> Iterator[T]:
    """All pages, for code without an event loop."""
    page = look(after)
    while True:
        yield from page
        if page.next is None:
            return
        page = look(page.next)
