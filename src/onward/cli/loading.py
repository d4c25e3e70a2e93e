"""From `module:app` on the command line to the app itself, or to whatever else is named there."""

import importlib
import os
import sys
import traceback
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import onward
from onward.addresses import shown
from onward.cli.failures import CommandFailed
from onward.client.app import Onward
from onward.errors import OnwardError

T = TypeVar("T")


def this_program() -> list[str]:
    """The words that start `onward` once more: this one, whatever lies in the current directory.

    An app is looked for there all the same, when it is loaded.
    """
    is_here = Path(onward.__file__).parents[1] == Path.cwd()
    return [sys.executable, *([] if is_here else ["-P"]), "-m", "onward"]


def load_app(target: str) -> Onward:
    """The app named by `module:app`; `app` may be a function that makes it, and is the default name."""
    return load(target, Onward, "app", "an Onward app")


def load(target: str, kind: type[T], default: str, words: str) -> T:
    """What is named by `module:name`, or made by the function of that name; `default` is the name if none is given."""
    module_name, _, attribute = target.partition(":")
    if "://" in target or not all(part.isidentifier() for part in module_name.split(".")):
        raise CommandFailed(
            f"{named(target)} does not name {words}: write module:{default}, for example shop.jobs:{default}"
        )
    found = _attribute(_module(module_name), module_name, attribute or default, kind)
    if not isinstance(found, kind) and callable(found):
        found = _made_by(found, target, words)
    if not isinstance(found, kind):
        other = type(found)
        raise CommandFailed(f"{target} is a {other.__module__}.{other.__qualname__}, not {words}")
    return found


def named(target: str) -> str:
    """The target, to be shown; it may be an address, with a password, in the wrong place."""
    return shown(target) if any(sign in target for sign in ("://", "@", "=")) else repr(target)


def _module(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise CommandFailed(
                f"no module named {error.name!r}: looked in {here} and where Python is installed"
            ) from error
        raise _import_failed(name, error) from error
    except OnwardError:
        raise
    except Exception as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: Exception) -> CommandFailed:
    place = traceback.extract_tb(error.__traceback__)[-1]
    problem = " ".join(str(error).split())
    return CommandFailed(
        f"cannot import {name!r}: {type(error).__name__}: {problem} ({place.filename}, line {place.lineno}); "
        "--debug shows the traceback"
    )


def _attribute(module: ModuleType, module_name: str, attribute: str, kind: type[object]) -> object:
    try:
        found: object = attrgetter(attribute)(module)
    except AttributeError as error:
        others = [name for name, value in vars(module).items() if isinstance(value, kind)]
        instead = f"; it has {', '.join(f'{module_name}:{name}' for name in others)}" if others else ""
        raise CommandFailed(f"module {module_name!r} has no {attribute!r}{instead}") from error
    return found


def _made_by(factory: object, target: str, words: str) -> object:
    assert callable(factory)
    try:
        return factory()
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise
        raise CommandFailed(f"{target} is not {words}, and cannot be called to make one: {error}") from error
