"""What a handler does when it is called, whatever was put around it."""

import functools
import inspect
from typing import Any

YIELDS = "a function with `yield` does nothing when it is called: write one that returns"


def called(function: Any) -> Any:
    """The function that runs, without what was bound to it: of a partial, or of an object that can be called.

    >>> called(functools.partial(print, "a")) is print
    True
    """
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def yields(function: Any) -> bool:
    """Whether calling it makes a generator, so that nothing has run when it returns.

    >>> def numbers():
    ...     yield 1
    >>> yields(numbers), yields(print)
    (True, False)
    """
    runs = called(function)
    return inspect.isgeneratorfunction(runs) or inspect.isasyncgenfunction(runs)


def is_unrun(returned: object) -> bool:
    """Whether what was returned is a generator that nobody will run."""
    return inspect.isgenerator(returned) or inspect.isasyncgen(returned)
