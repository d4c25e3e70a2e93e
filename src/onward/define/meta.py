"""What travels with a job beside its input: a small mapping, checked like a payload."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from onward.define.codec import Codec, Limits
from onward.errors import StartRefused
from onward.options import given

MOST = 4096
"""Bytes of JSON."""
TRACE = ("traceparent", "tracestate")
"""Of a trace (W3C Trace Context): passed on also where the rest is not."""


def encode_meta(meta: object, job_type: str) -> str | None:
    """The text to store, None of nothing; raises StartRefused or PayloadError."""
    if not isinstance(meta, Mapping) or not all(isinstance(key, str) for key in meta):
        raise StartRefused(f"{job_type!r}: {given('meta', meta)}: expected a mapping whose keys are text")
    return _codec(job_type).encode(dict(meta)) if meta else None


def merged(text: str | None, others: Mapping[str, Any]) -> str | None:
    """The text with others added that it does not say itself."""
    if not others:
        return text
    own = {} if text is None else msgspec.json.decode(text)
    return msgspec.json.encode({**others, **own}).decode()


def trace_of(text: str | None) -> dict[str, Any]:
    """What of a stored mapping says where it belongs."""
    if text is None or TRACE[0] not in text:
        return {}
    stored = msgspec.json.decode(text)
    return {key: stored[key] for key in TRACE if key in stored}


@lru_cache(maxsize=1024)
def _codec(job_type: str) -> Codec:
    return Codec(dict[str, Any], job_type=job_type, part="meta", limits=Limits(MOST, 20, "meta"))
