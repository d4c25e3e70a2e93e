"""The names of a flow's keys, and what its scripts are told of it."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import msgspec

from onward.flow.options import Keep
from onward.flow.stage import Stage


class Keys:
    """On a single server the names of the document; on a cluster each has the flow's hash tag.

    >>> Keys("access", tagged=False).queue("check", "waiting"), Keys("access", tagged=True).queue("check", "waiting")
    ('queue:check:waiting', 'queue:{access}:check:waiting')
    """

    def __init__(self, flow: str, *, tagged: bool) -> None:
        self.name = f"{{{flow}}}" if tagged else flow
        self.tag = f"{{{flow}}}:" if tagged else ""

    def job(self, job_id: str) -> str:
        return f"job:{self.name}:{job_id}"

    def queue(self, stage: str, part: str) -> str:
        return f"queue:{self.tag}{stage}:{part}"

    def index(self, attribute: str, value: str) -> str:
        return f"index:{self.name}:{attribute}:{value}"


def milliseconds(duration: timedelta) -> int:
    """Rounded up, so that something never becomes nothing."""
    return -(-duration // timedelta(milliseconds=1))


def settings(keys: Keys, stages: Mapping[str, Stage], *, indexed: Iterable[str], keep: Keep, keep_failed: Keep) -> str:
    """The first argument of every script (`common.lua`)."""
    return msgspec.json.encode(
        {
            "name": keys.name,
            "tag": keys.tag,
            "indexed": dict.fromkeys(indexed, True),
            "keep": {"age": milliseconds(keep.age), "count": keep.count},
            "keep_failed": {"age": milliseconds(keep_failed.age), "count": keep_failed.count},
            "stages": {stage.name: _of_stage(stage) for stage in stages.values()},
        }
    ).decode()


def _of_stage(stage: Stage) -> dict[str, Any]:
    told: dict[str, Any] = {"lock": milliseconds(stage.lock), "max_stalls": stage.max_stalls}
    if stage.max_retries:
        told["max_retries"] = stage.max_retries
    if stage.backoff is not None:
        told["backoff"] = milliseconds(stage.backoff.initial)
        told["backoff_factor"] = stage.backoff.factor
        told["backoff_most"] = milliseconds(stage.backoff.maximum)
        told["backoff_jitter"] = stage.backoff.jitter
    if stage.delay:
        told["delay"] = milliseconds(stage.delay)
    if stage.priorities:
        told["prioritised"] = True
    if stage.rate is not None:
        group = {} if stage.rate.group is None else {"group": stage.rate.group}
        told["rate"] = {"limit": stage.rate.limit, "per": milliseconds(stage.rate.per), **group}
    return told
