"""Filters as they stand in the address."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from starlette.datastructures import QueryParams

from onward.client.arguments import AMONG, AMONG_CHAINS, AMONG_ERRORS, Filters, filter_of
from onward.client.words import duration_of
from onward.dashboard.refusal import Refusal
from onward.errors import ConfigurationError

NAMES = ("type", "status", "reason", "error", "error_type", "older", "newer", "root")
PER_PAGE = 50
_MOST_PER_PAGE = 200


def filters_of(query: QueryParams, *, chains: bool = False) -> Filters:
    """What to list; raises Refusal for what cannot be. So many jobs are looked through as is quick."""
    error = query.get("error", "").strip() or None
    among = AMONG_ERRORS if error else AMONG_CHAINS if chains else AMONG
    found: Any = {
        "types": _several(query, "type"),
        "status": _several(query, "status"),
        "reason": _several(query, "reason"),
        "error_type": _several(query, "error_type"),
        "older_than": _duration(query, "older"),
        "newer_than": _duration(query, "newer"),
        "root_id": id_of(query, "root"),
        "error_text": error,
        "among": among,
    }
    filters: Filters = {name: value for name, value in found.items() if value is not None}  # type: ignore[assignment]
    try:
        filter_of(filters)
    except ConfigurationError as problem:
        raise Refusal(400, f"This cannot be looked for: {problem}") from None
    return filters


def is_filtered(query: QueryParams) -> bool:
    """Whether anything is asked for in particular."""
    return any(query.get(name, "").strip() for name in NAMES)


def limit_of(query: QueryParams) -> int:
    """How many a page has."""
    text = query.get("limit", "").strip()
    if not text:
        return PER_PAGE
    if not (text.isascii() and text.isdigit() and len(text) < 10) or not 1 <= int(text) <= _MOST_PER_PAGE:
        raise Refusal(400, f"limit: a page has 1 to {_MOST_PER_PAGE} rows.")
    return int(text)


def id_of(query: QueryParams, name: str) -> UUID | None:
    """An id in the address, if there is one; raises Refusal for anything else."""
    text = query.get(name, "").strip()
    try:
        return UUID(text) if text else None
    except ValueError:
        raise Refusal(400, f"{name}: {text[:100]!r} is no id.") from None


def _several(query: QueryParams, name: str) -> list[str] | None:
    found = [text.strip() for text in query.getlist(name) if text.strip()]
    if len(found) > 100:
        raise Refusal(400, f"{name}: that is too many at once.")
    return found or None


def _duration(query: QueryParams, name: str) -> timedelta | None:
    text = query.get(name, "").strip()
    try:
        return duration_of(text) if text else None
    except ValueError as problem:
        raise Refusal(400, f"{name}: {problem}") from None
