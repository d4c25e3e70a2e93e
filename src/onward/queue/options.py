"""What may be said about a job when it is added: checked, then cut down to what the provider can do."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, TypedDict

import msgspec

from onward.define.codec import Codec, Limits
from onward.errors import PayloadError
from onward.model import Backoff
from onward.options import LONGEST
from onward.queue.checks import MOST_COUNTED, is_whole
from onward.queue.model import Capabilities


class JobOptions(TypedDict, total=False):
    """The options of `queue.add`, and of `Queue(defaults=…)`. What is left out has no say; `None` is not a value.

    >>> JobOptions(attempts=3, delay=timedelta(seconds=5))
    {'attempts': 3, 'delay': datetime.timedelta(seconds=5)}
    """

    attempts: int
    """How often a job is tried in all: how many handlers may raise or take too long."""
    max_stalls: int
    """How many holders may die, or let their lease run out, before the job fails; 3 when left out."""
    backoff: Backoff
    """How long to wait between attempts; left out: tried again at once."""
    delay: timedelta
    """When it may be taken, from now."""
    ttl: timedelta
    """How long from now a job is worth beginning; later it fails instead, as expired."""
    priority: int
    """A higher number is more urgent."""
    remove_on_complete: bool
    """Keep nothing of it once it has completed."""
    remove_on_fail: bool
    """Keep nothing of it once it has failed for good."""
    metadata: Mapping[str, Any]
    """Facts that travel with the job and its events."""
    provider_options: Mapping[str, Mapping[str, Any]]
    """By the provider's name, no other's: native options that override what the others were translated to."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options as a provider receives them: complete, checked, and nothing it does not support."""

    attempts: int = 1
    max_stalls: int = 3
    backoff: Backoff | None = None
    delay: timedelta = timedelta()
    ttl: timedelta | None = None
    priority: int = 0
    remove_on_complete: bool = False
    remove_on_fail: bool = False
    metadata: Mapping[str, Any] = {}
    native: Mapping[str, Any] = {}
    """What `provider_options` has for this provider."""

    def retry_delay(self, failures: int) -> timedelta:
        """The wait after that many failures."""
        return self.backoff.delay(failures) if self.backoff is not None else timedelta()


class UnsupportedFeature(msgspec.Struct, frozen=True, kw_only=True):
    """An option that was dropped because the provider does not have it."""

    queue_name: str
    provider: str
    option: str
    message: str


def _int_from(least: int) -> tuple[str, Callable[[Any], bool]]:
    return f"a whole number from {least} to {MOST_COUNTED}", lambda v: is_whole(v, least=least)


def _time(expected: str, fits: Callable[[timedelta], bool]) -> tuple[str, Callable[[Any], bool]]:
    words = f"a timedelta {expected}, and at most {LONGEST.days} days"
    return words, lambda v: isinstance(v, timedelta) and fits(v) and v <= LONGEST


_BOOL: tuple[str, Callable[[Any], bool]] = "True or False", lambda v: isinstance(v, bool)
_MAPPING: tuple[str, Callable[[Any], bool]] = "a mapping", lambda v: isinstance(v, Mapping)
_metadata = Codec(dict[str, Any], job_type="", part="metadata", limits=Limits())
_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "attempts": _int_from(1),
    "max_stalls": _int_from(0),
    "backoff": ("a Backoff", lambda v: isinstance(v, Backoff)),
    "delay": _time("that is not negative", lambda v: v >= timedelta()),
    "ttl": _time("above zero", lambda v: v > timedelta()),
    "priority": _int_from(0),
    "remove_on_complete": _BOOL,
    "remove_on_fail": _BOOL,
    "metadata": _MAPPING,
    "provider_options": _MAPPING,
}


def problem_with(options: Mapping[str, Any]) -> str | None:
    """What is wrong with options, in words: an unknown one, or a value of the wrong kind, `None` included."""
    for option, value in options.items():
        if option not in _EXPECTED:
            return f"{option} is not an option of a job; these are: {', '.join(_EXPECTED)}"
        expected, fits = _EXPECTED[option]
        if not fits(value):
            return f"{option} must be {expected}, got: {value!r}"
    try:
        if "metadata" in options:
            _metadata.encode(options["metadata"])
    except PayloadError as error:
        return f"metadata{error.field.removeprefix('$')}: {error.problem}"
    return None


_NEEDS = {
    "priority": ("priority", "job priorities"),
    "delay": ("delayed_jobs", "delayed jobs"),
    "attempts": ("retries", "a number of attempts per job: the policy of the whole queue decides"),
    "max_stalls": ("stalls", "counting the deaths of workers apart from attempts"),
    "ttl": ("ttl", "a time to live per job"),
    "backoff": ("backoff", "a backoff per job"),
    **dict.fromkeys(("remove_on_complete", "remove_on_fail"), ("removal", "keeping or removing finished jobs")),
}


def lacking(option: str, capabilities: Capabilities) -> str | None:
    """What a provider with these capabilities does not support if the option is given, in words."""
    capability, words = _NEEDS.get(option, ("", ""))
    return words if capability and not getattr(capabilities, capability) else None
