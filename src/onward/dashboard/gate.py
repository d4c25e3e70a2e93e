"""The one gate that everything goes through that changes something; what passed and what did not is written down."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, TypeAlias
from urllib.parse import parse_qs

from starlette.requests import Request

from onward.client.app import Onward
from onward.dashboard.access import Door, Visitor
from onward.dashboard.beside import Beside
from onward.dashboard.page import Action, Form
from onward.dashboard.reading import refusal_of
from onward.dashboard.refusal import Refusal
from onward.dashboard.replays import Replays
from onward.errors import OnwardError

audit = logging.getLogger("onward.dashboard.audit")
_LARGEST = 2 * 1024 * 1024
_MOST_FIELDS = 2_000
_LONGEST_TOLD = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the audit log."""

    at: datetime
    who: str
    address: str | None
    """Of the other end of the connection; behind a proxy, what the server makes of its headers."""
    action: str
    what: str
    """What it was to be done to."""
    outcome: Literal["done", "refused", "failed"]
    words: str
    """What was done, or why not."""


Write: TypeAlias = Callable[[Entry], Awaitable[None] | None]


class Gate:
    """Lets through what a visitor who may act has asked for in a form of ours."""

    def __init__(
        self,
        app: Onward,
        door: Door,
        *,
        write: bool,
        hide_payloads: bool | None,
        replays: Replays,
        beside: Beside,
        also: Write | None,
    ) -> None:
        self._app, self._door, self._write = app, door, write
        self._hide_payloads, self._replays, self._also = hide_payloads, replays, also
        self._beside = beside

    def may_act(self, visitor: Visitor) -> bool:
        """Whether there is anything that this visitor could do."""
        return self._write and visitor.may_act

    def check(self, visitor: Visitor) -> None:
        """Raise Refusal for a visitor, or a dashboard, that may only look."""
        if not self._write:
            raise Refusal(403, "This dashboard is read-only. Start it with --write, or make it with write=True.")
        if not visitor.may_act:
            raise Refusal(403, f"{visitor.name} may look, but not change anything.")

    def form(self, visitor: Visitor, fields: dict[str, list[str]]) -> Form:
        """What somebody asks for."""
        return Form(
            app=self._app,
            visitor=visitor,
            fields=fields,
            hide_payloads=self._hide_payloads,
            replays=self._replays,
            beside=self._beside,
        )

    async def act(self, request: Request, visitor: Visitor, action: Action) -> tuple[str, Form]:
        """Do what a form asks for; says what was done. Raises Refusal."""
        form = self.form(visitor, {})
        try:
            self.check(visitor)
            form = self.form(visitor, await _fields(request))
            self._door.check_write(request, visitor, form.maybe("token") or "")
        except Refusal as refusal:
            await self._record(request, form, action, "refused", refusal.words)
            raise
        try:
            words = await action.do(form)
        except Refusal as refusal:
            await self._record(request, form, action, "refused", refusal.words)
            raise
        except OnwardError as error:
            await self._record(request, form, action, "failed", str(error))
            raise refusal_of(error) from error
        except BaseException as error:
            # It may have been done, in part or whole.
            await self._record(request, form, action, "failed", type(error).__name__)
            raise
        await self._record(request, form, action, "done", words)
        return words, form

    async def _record(
        self, request: Request, form: Form, action: Action, outcome: Literal["done", "refused", "failed"], words: str
    ) -> None:
        entry = Entry(
            at=datetime.now(UTC),
            who=form.visitor.name,
            address=request.client.host if request.client else None,
            action=action.name,
            what=" ".join(f"{name}={_told(form.fields[name])}" for name in action.records if form.fields.get(name)),
            outcome=outcome,
            words=words,
        )
        level = logging.INFO if outcome == "done" else logging.WARNING
        # As repr shows them: what somebody sent must not make lines of its own.
        told = (entry.outcome, entry.action, entry.who, entry.address, entry.what, entry.words)
        audit.log(level, "%s %s by %r from %r: %r: %r", *told, extra={"audit": entry})
        if self._also is not None:
            written = self._also(entry)
            if inspect.isawaitable(written):
                await written


def _told(values: list[str] | tuple[str, ...] | object) -> str:
    text = ",".join(map(str, values)) if isinstance(values, list | tuple) else str(values)
    return text if len(text) <= _LONGEST_TOLD else f"{text[:_LONGEST_TOLD]}… ({len(text):,} characters)"


async def _fields(request: Request) -> dict[str, list[str]]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refusal(415, "Only forms of this dashboard are accepted.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST:
            raise Refusal(413, f"That is too much: a form has at most {_LARGEST:,} bytes.")
    try:
        return parse_qs(
            bytes(body).decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError as problem:
        raise Refusal(400, f"This form cannot be read: {problem}") from None
