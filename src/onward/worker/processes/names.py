"""Handlers by name: another process imports the module and finds the function there."""

import importlib
import importlib.util
import os
import socket
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from operator import attrgetter
from types import ModuleType

from onward.define.registry import RegisteredType
from onward.errors import ConfigurationError, DefinitionError
from onward.worker.processes.messages import HandlerName

_SCRIPT = "__onward_main__"
"""What `__name__` is when the program that was started is imported by a process of its worker."""


def handler_names(types: Sequence[RegisteredType]) -> dict[str, HandlerName]:
    """Where processes find the handlers of these types. Raises DefinitionError for those that cannot be imported."""
    if not types:
        return {}
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigurationError('executor="process" needs Unix sockets, which this system does not have')
    if "onward.worker.processes.child" in sys.modules:
        raise ConfigurationError(
            "importing the module of a handler starts a worker: put that under `if __name__ == '__main__':`"
        )
    names: dict[str, HandlerName] = {}
    problems: list[str] = []
    for kind in types:
        try:
            names[kind.name] = _name(kind)
        except LookupError as error:
            problems.append(f'{kind.name}: executor="process" imports the handler, but {error.args[0]}')
    if problems:
        raise DefinitionError(problems)
    return names


def _name(kind: RegisteredType) -> HandlerName:
    run = kind.step.run
    module_name, name = getattr(run, "__module__", None), getattr(run, "__qualname__", "")
    if not module_name or not name or "<" in name:
        raise LookupError(f"{name or run!r} is defined inside a function: move it to the top level of a module")
    try:
        found = attrgetter(name)(sys.modules[module_name])
    except (KeyError, AttributeError):
        found = None
    if found is not kind.step and found is not run:
        raise LookupError(f"{module_name}.{name} is something else: give it a name of its own there")
    return _of_main(name) if module_name == "__main__" else HandlerName(module_name, name)


def _of_main(name: str) -> HandlerName:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":  # python -m package.module
        return HandlerName(spec.name, name)
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path):
        raise LookupError(f"{name} was defined at a prompt: put it in a module")
    return HandlerName("__main__", name, os.path.abspath(path))


def find(name: HandlerName) -> object:
    """In the process: the handler, or the job type made of it."""
    module = importlib.import_module(name.module) if name.script is None else _script(name.script)
    return attrgetter(name.name)(module)


def _script(path: str) -> ModuleType:
    if _SCRIPT not in sys.modules:
        spec = importlib.util.spec_from_loader(_SCRIPT, SourceFileLoader(_SCRIPT, path))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_SCRIPT] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[_SCRIPT]
            raise
    return sys.modules[_SCRIPT]
