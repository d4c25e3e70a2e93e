"""The onion around handlers and their phases, the values it provides, and the resources of a worker."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, Literal, Protocol, TypeVar

from onward.define.job_type import BUILT_IN
from onward.define.middleware import Middleware, Resource, name_of
from onward.define.registry import RegisteredType
from onward.errors import DefinitionError, MissingContext
from onward.options import given, wrong_several

T = TypeVar("T")
Hook = Literal["around_handler", "around_prepare", "around_complete"]


class Surrounded(Protocol):
    """An attempt, as its middleware sees it."""

    kind: RegisteredType
    provided: tuple[object, ...]
    """The values it can get by type, the innermost last."""


def find(attempt: Surrounded, kind: type[T]) -> T:
    """The innermost value of a type, or MissingContext."""
    for value in reversed(attempt.provided):
        if isinstance(value, kind):
            return value
    raise MissingContext(kind=kind, job_type=attempt.kind.name, available=[type(value) for value in attempt.provided])


@asynccontextmanager
async def onion(attempt: Surrounded, hook: Hook, *arguments: Any) -> AsyncIterator[None]:
    """The middleware of the attempt's slice, the first outermost. It may change an error, but not make it disappear."""
    failed: BaseException | None = None
    async with AsyncExitStack() as stack:
        try:
            for middleware in attempt.kind.middleware:
                make: Callable[..., object] | None = getattr(middleware, hook, None)
                if make is not None:
                    made = make(attempt, *arguments)
                    yielded = await _enter(
                        stack, made, name_of(middleware, hook), in_thread=attempt.kind.runs_in_thread
                    )
                    stack.enter_context(_providing(attempt, yielded))
            yield
        except BaseException as error:
            failed = error
            raise
    if failed is not None:
        raise failed


async def _enter(stack: AsyncExitStack, made: object, name: str, *, in_thread: bool = False) -> object:
    if isinstance(made, AbstractAsyncContextManager) and not in_thread:
        return await stack.enter_async_context(made)
    if isinstance(made, AbstractContextManager):
        return stack.enter_context(made)
    if isinstance(made, AbstractAsyncContextManager):
        raise DefinitionError([f"{name} needs an event loop, but a def handler runs in a thread: use @contextmanager"])
    raise DefinitionError([f"{name} gave {made!r}, which is no context manager"])


@contextmanager
def _providing(attempt: Surrounded, yielded: object) -> Iterator[None]:
    before = attempt.provided
    attempt.provided = (*before, *_values(yielded))
    try:
        yield
    finally:
        attempt.provided = before


def _values(yielded: object) -> Sequence[object]:
    if yielded is None:
        return ()
    return yielded if type(yielded) is list else (yielded,)


# -- what a worker has


@asynccontextmanager
async def opened(resources: Sequence[Resource]) -> AsyncIterator[tuple[object, ...]]:
    """The values of resources, opened in order and closed in reverse, each whatever became of the others."""
    async with AsyncExitStack() as stack:
        values: list[object] = []
        for resource in resources:
            made = resource if isinstance(resource, _BLOCKS) else resource()
            values += _values(await _enter(stack, made, f"resource {getattr(resource, '__name__', resource)!s}"))
        yield tuple(values)


_BLOCKS = (AbstractAsyncContextManager, AbstractContextManager)


def wrong_resources(resources: object) -> str | None:
    """Why these are no resources."""
    problem = wrong_several("resources", resources, of="resources")
    if problem is None and isinstance(resources, Iterable):
        such = "a function that makes a context manager, or one"
        found = [given("resources", [one]) for one in resources if not (callable(one) or isinstance(one, _BLOCKS))]
        problem = f"{found[0]}: expected {such}" if found else None
    return problem


def check_required(types: Sequence[RegisteredType], required: Sequence[Middleware]) -> None:
    """Raise one DefinitionError that names every slice, and every type without one, that lacks required middleware."""
    problems: dict[str, None] = {}
    for kind in types:
        if kind.name.startswith(BUILT_IN):
            continue
        problem = _lack(kind.middleware, required)
        if problem is not None:
            own = kind.definition.slice
            problems[f"slice {own.prefix!r}: {problem}" if own else f"{kind.name}: it is in no slice, so {problem}"] = (
                None
            )
    if problems:
        raise DefinitionError(list(problems))


def _lack(middleware: Sequence[Middleware], required: Sequence[Middleware]) -> str | None:
    """What keeps `required` from being part of `middleware`, in order; the very instances."""
    missing = [one for one in required if not any(one is other for other in middleware)]
    if missing:
        return f"the worker requires {_listing(missing)}, which it lacks{_hint(missing, middleware)}"
    rest = iter(middleware)
    if all(any(one is other for other in rest) for one in required):
        return None
    return f"the worker requires {_listing(required)} in this order, but it has {_listing(middleware)}"


def _listing(middleware: Sequence[Middleware]) -> str:
    return ", ".join(map(name_of, middleware))


def _hint(missing: Sequence[Middleware], middleware: Sequence[Middleware]) -> str:
    kinds = {type(one) for one in middleware}
    others = [one for one in missing if type(one) in kinds]
    return f" (its {_listing(others)} is another instance: share one)" if others else ""
