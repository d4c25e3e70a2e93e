"""The one gate that everything goes through that changes something; what passed and what did not is written down."""

import asyncio
from datetime import UTC, datetime
from urllib.parse import parse_qs
from uuid import uuid4

from starlette.requests import ClientDisconnect, Request

from onward.client.app import Onward
from onward.dashboard.access import Door, Visitor
from onward.dashboard.audit import Audit, Entry, Write
from onward.dashboard.beside import Beside
from onward.dashboard.page import Action, Form
from onward.dashboard.reading import Readings, refusal_of
from onward.dashboard.refusal import Away, Refusal
from onward.dashboard.replays import Replays
from onward.errands import Errands, to_the_end
from onward.errors import OnwardError

_LARGEST = 2 * 1024 * 1024
_MOST_FIELDS = 2_000
_LONGEST_TOLD = 10_000
_PATIENCE = 2.0
"""Seconds after which somebody looks whether the database answers at all; if so, it takes the time it takes."""
_UNKNOWN = (
    "So it is not known whether this was done: it may be, now or when the database is back. "
    "What came of it is written to the audit log once it is known, as {}."
)


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
        readings: Readings,
        also: Write | None,
    ) -> None:
        self._app, self._door, self._write = app, door, write
        self._hide_payloads, self._replays, self._audit = hide_payloads, replays, Audit(also)
        self._beside, self._readings = beside, readings
        self._errands = Errands()

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
            await self._audit.refused(_entry(request, form, action), refusal.words)
            raise
        entry = _entry(request, form, action)
        await self._audit.asked(entry)
        return await self._outcome(entry, form, action), form

    async def _outcome(self, entry: Entry, form: Form, action: Action) -> str:
        """What was done. Nobody waits for a database that answers nobody: then it goes on alone, to its end."""
        began, doing = datetime.now(UTC), self._errands.begin(self._done(entry, form, action))
        try:
            while not (await asyncio.wait((doing,), timeout=_PATIENCE))[0]:
                away = await self._readings.away(self._app, began)
                if away is not None and not doing.done():
                    raise Away(f"{away.words} {_UNKNOWN.format(entry.id)}", since=away.since)
        except asyncio.CancelledError:
            doing.cancel()
            await to_the_end(asyncio.wait((doing,)))
            raise
        return doing.result()

    async def end(self) -> None:
        """Nobody asks any more: what still waits for the database is given up, which is written down."""
        await self._errands.end()

    async def _done(self, entry: Entry, form: Form, action: Action) -> str:
        try:
            words = await action.do(form)
        except Refusal as refusal:
            await self._audit.ended(entry, "refused", refusal.words)
            raise
        except OnwardError as error:
            words = await self._audit.ended(entry, "failed", f"{error}{form.progress.words}")
            raise Refusal(refusal_of(error).status, words) from error
        except BaseException as error:
            # It may have been done, in part or whole.
            await self._audit.ended(entry, "failed", f"{type(error).__name__}.{form.progress.words}")
            raise
        return await self._audit.ended(entry, "done", words)


def _entry(request: Request, form: Form, action: Action) -> Entry:
    return Entry(
        id=uuid4().hex,
        at=datetime.now(UTC),
        who=form.visitor.name,
        address=request.client.host if request.client else None,
        action=action.name,
        what=" ".join(f"{name}={_told(form.fields[name])}" for name in action.records if form.fields.get(name)),
        outcome="asked",
        words="",
    )


def _told(values: list[str] | tuple[str, ...] | object) -> str:
    text = ",".join(map(str, values)) if isinstance(values, list | tuple) else str(values)
    return text if len(text) <= _LONGEST_TOLD else f"{text[:_LONGEST_TOLD]}… ({len(text):,} characters)"


async def _fields(request: Request) -> dict[str, list[str]]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refusal(415, "Only forms of this dashboard are accepted.")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LARGEST:
                raise Refusal(413, f"That is too much: a form has at most {_LARGEST:,} bytes.")
    except ClientDisconnect:
        raise Refusal(400, "This form broke off: whoever sent it is gone.") from None
    try:
        return parse_qs(
            bytes(body).decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError as problem:
        raise Refusal(400, f"This form cannot be read: {problem}") from None
