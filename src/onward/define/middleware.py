"""Middleware and resources: what surrounds handlers, and the values it hands them by type."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol, TypeAlias

from onward.define.attempt import Attempt

Surrounding: TypeAlias = AbstractAsyncContextManager[object] | AbstractContextManager[object]
"""What it yields is provided: a value, a list of values, or None for nothing. With both protocols it fits everywhere:
`async def` handlers then enter it with `async with`, `def` handlers with `with`."""
Resource: TypeAlias = Surrounding | Callable[[], Surrounding]
"""Opened once per worker: a context manager, or what makes one, such as a class or an `@asynccontextmanager` function.

>>> from contextlib import contextmanager
>>> @contextmanager
... def directory():
...     yield {"ada": "ada@example.org"}
>>> resources: list[Resource] = [directory]
"""


class AroundHandler(Protocol):
    """Middleware around the whole handler."""

    def around_handler(self, attempt: Attempt[Any, Any], /) -> Surrounding:
        """Entered before the handler and left when it has returned or raised; the commit of the job comes later."""
        ...


class AroundPrepare(Protocol):
    """Middleware around the `prepare()` block."""

    def around_prepare(self, attempt: Attempt[Any, Any], tx: Any, /) -> Surrounding:
        """Entered in the transaction, before the block; left before a staged prepare commits."""
        ...


class AroundComplete(Protocol):
    """Middleware around the `complete()` block."""

    def around_complete(self, attempt: Attempt[Any, Any], tx: Any, /) -> Surrounding:
        """Entered in the transaction, before the block; what it writes commits with the job, or not at all."""
        ...


Middleware: TypeAlias = AroundHandler | AroundPrepare | AroundComplete
"""An object with any of the hooks `around_handler`, `around_prepare` and `around_complete`; no base class is needed.

>>> import time
>>> from contextlib import contextmanager
>>> class Timed:
...     @contextmanager
...     def around_handler(self, attempt: Attempt[Any]):
...         started = time.monotonic()
...         try:
...             yield
...         finally:
...             print(attempt.job_type, time.monotonic() - started)
>>> timed: Middleware = Timed()
"""

HOOKS = ("around_handler", "around_prepare", "around_complete")


def name_of(middleware: object, hook: str | None = None) -> str:
    """How messages call it."""
    name = type(middleware).__name__
    return f"{name}.{hook}" if hook else name


def middleware_problems(stack: Sequence[object]) -> list[str]:
    """What is wrong with the middleware of a slice, whatever its handlers."""
    return [problem for middleware in stack for problem in _problems(middleware)]


def needs_event_loop(stack: Sequence[object]) -> list[str]:
    """The hooks that are certain not to work around a handler in a thread."""
    return [
        name_of(middleware, name)
        for middleware in stack
        for name in HOOKS
        if inspect.isasyncgenfunction(inspect.unwrap(getattr(middleware, name, _absent)))
    ]


def _problems(middleware: object) -> list[str]:
    if isinstance(middleware, type):
        return [f"{middleware.__name__} is a class: middleware are instances, {middleware.__name__}(…)"]
    found = [name for name in dir(middleware) if name.startswith("around_")]
    if not found:
        return [f"{name_of(middleware)} has none of the hooks {', '.join(HOOKS)}"]
    unknown = [name for name in found if name not in HOOKS]
    problems = [f"{name_of(middleware, name)} is not among the hooks {', '.join(HOOKS)}" for name in unknown]
    return problems + [
        f"{name_of(middleware, name)} returns no context manager: put @contextmanager or @asynccontextmanager above it"
        for name in HOOKS
        if _is_bare(getattr(middleware, name, _absent))
    ]


def _is_bare(hook: Callable[..., object]) -> bool:
    return inspect.isasyncgenfunction(hook) or inspect.isgeneratorfunction(hook) or inspect.iscoroutinefunction(hook)


def _absent() -> None: ...
