"""The dashboard as an ASGI application."""

import asyncio
import base64
import binascii
import hashlib
import logging
import mimetypes
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from onward.client.app import Onward
from onward.dashboard.access import COOKIE, HEADERS, Authenticate, Door, Visitor, new_cookie
from onward.dashboard.audit import Write
from onward.dashboard.beside import Beside
from onward.dashboard.gate import Gate
from onward.dashboard.page import Action, Ask, Page
from onward.dashboard.pages.registry import ACTIONS, PAGES
from onward.dashboard.paths import LONGEST, back_of, base_of, below_mount, own_address, own_path, without_slash
from onward.dashboard.reading import Reading, Readings, refusal_of
from onward.dashboard.refusal import Away, Elsewhere, NotThere, Refusal
from onward.dashboard.rendering import Renderer
from onward.dashboard.replays import Replays
from onward.errors import OnwardError, require
from onward.options import wrong_duration
from onward.queue import Queue

if TYPE_CHECKING:  # flows need Redis, dashboards do not
    from onward.flow import Flow

logger = logging.getLogger("onward.dashboard")
_SAID = "onward_said"
_STATIC = Path(__file__).parent / "static"
_LONGEST_SAID = 1_500
_MOST_STREAMS = 500
_STREAM_SECONDS = 50.0
"""Then a tab asks anew: so a server that stops waits no longer, and whoever may no longer look no longer does."""


class Dashboard:
    """Pages that show what an app's jobs do: an ASGI application, to be mounted at any path, or served alone.

    >>> from onward import Onward
    >>> from onward.dashboard import Dashboard
    >>> dashboard = Dashboard(Onward("memory://", jobs=[]))

    The app is the host's: it is opened and closed by whoever made it. Served alone, the dashboard does that, in its
    lifespan.
    """

    def __init__(
        self,
        app: Onward,
        *,
        queues: Sequence[Queue[Any]] = (),
        flows: "Sequence[Flow[Any]]" = (),
        write: bool = False,
        users: Mapping[str, str] | None = None,
        authenticate: Authenticate | None = None,
        hosts: Sequence[str] | None = None,
        secret: str | None = None,
        hide_payloads: bool | None = None,
        audit: Write | None = None,
        title: str = "Onward",
        timeout: timedelta = timedelta(milliseconds=900),
    ) -> None:
        """`queues` and `flows` are shown beside the jobs; whoever made the flows opens them.

        `write`: whether anything can be changed. `users`: names and passwords (HTTP basic). `authenticate`: a function
        of a request that gives a `Visitor`, or None for whoever may not look. With neither, only this machine is
        answered.

        `hosts`: the names that it answers to (default: any; without authentication, those of this machine).
        `secret`: signs forms, where several processes serve one dashboard. `hide_payloads`: show no inputs and outputs;
        unless said, those are hidden of which the app does not know what is secret. `audit` is called with each entry
        of the audit log (`AuditFile` keeps them in a file), which also goes to the logger `onward.dashboard.audit`;
        before something is done and after it, and if it raises before, nothing is done. `timeout`: how long the
        database may take for a page.
        """
        require(wrong_duration("timeout", timeout, least=timedelta(milliseconds=1)))
        self.app, self.title = app, title
        self._door = Door(users=users, authenticate=authenticate, hosts=hosts, secret=secret)
        self._replays = Replays()
        self.beside = Beside(queues, flows, timeout=timeout.total_seconds())
        """Its queues and flows. To be entered while it is served alone: then it opens them, and lets them go."""
        self._readings = Readings(timeout=timeout.total_seconds())
        self._gate = Gate(
            app,
            self._door,
            write=write,
            hide_payloads=hide_payloads,
            replays=self._replays,
            beside=self.beside,
            readings=self._readings,
            also=audit,
        )
        self._hide_payloads = hide_payloads
        self._renderer = Renderer()
        self._files = {path.name: path.read_bytes() for path in _STATIC.iterdir() if path.is_file()}
        self._version = hashlib.sha256(b"".join(self._files[name] for name in sorted(self._files))).hexdigest()[:12]
        self._streams = 0
        self._stopping = asyncio.Event()
        self._pages = [(Route(page.path, self._page_of(page), methods=["GET"]), page) for page in PAGES]
        self._navigation = [page for page in PAGES if page.navigation and self.beside.has(page.needs)]
        self._actions: dict[str, Action] = {action.name: action for action in ACTIONS}
        self.routes = [
            *(route for route, _ in self._pages),
            Route("/live", self._live, methods=["GET"]),
            Route("/confirm/{action}", self._confirm, methods=["GET"]),
            Route("/do/{action}", self._do, methods=["POST"]),
            Route("/static/{name}", self._file, methods=["GET"]),
        ]
        """All that it answers; what changes something is below /do."""
        self._router = Router(self.routes, redirect_slashes=False, default=_nothing)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._life(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    # -- life

    def end_streams(self) -> None:
        """Whoever serves this is about to stop, and waits for answers to end: live pages never would."""
        self._stopping.set()

    async def _life(self, receive: Receive, send: Send) -> None:
        """Open the app, unless somebody else has."""
        await receive()
        opens = not self.app.is_open
        try:
            if opens:
                await self.app.open()
        except OnwardError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        try:
            async with self.beside:
                await receive()
        finally:
            await self._gate.end()
            if opens:
                await self.app.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _check_open(self) -> None:
        if not self.app.is_open:
            raise Refusal(503, "The app is not open: whoever serves this dashboard has to open it (async with app:).")
        if self.app.loop is not asyncio.get_running_loop():
            raise Refusal(503, "The app was opened in another event loop than the one that serves this dashboard.")

    # -- requests

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Of a host built on Starlette, its routes and what it makes of errors are no concern of ours.
        own = {
            key: value for key, value in scope.items() if key not in ("app", "router", "starlette.exception_handlers")
        }
        own = {**below_mount(own), "path_params": {}}
        request = Request(own, receive)
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                said = {name.lower() for name, _ in message["headers"]}
                more = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in said]
                message = {**message, "headers": [*message["headers"], *more]}
            elif message["type"] == "http.response.body" and scope["method"] == "HEAD":
                message = {**message, "body": b""}
            await send(message)

        try:
            # The host's hook sees the request as the host does: its app, its session, the path in whole.
            visitor = await self._door.visitor(Request(dict(scope), receive))
            own["onward.visitor"] = visitor
            if (place := without_slash(scope)) is not None:
                await Response(status_code=307, headers={"location": place})(own, receive, guarded)
                return
            if len(str(request.url)) > LONGEST:
                raise Refusal(414, "This address is too long.")
            await self._router(own, receive, guarded)
        except Elsewhere as other:
            place = base_of(urlsplit(own_address(own)).path) + other.path.removeprefix("/")
            await Response(status_code=303, headers={"location": place})(own, receive, guarded)
        except Exception as error:
            if begun:
                raise
            await self._refused(request, error)(own, receive, guarded)

    def _refused(self, request: Request, error: Exception) -> Response:
        """A page that says what is wrong."""
        if isinstance(error, OnwardError):
            error = refusal_of(error)
        if isinstance(error, HTTPException):
            # The host's hook may raise one, with a challenge, or with the address of its own page.
            words = "This cannot be asked for." if error.status_code != 404 else _NOTHING
            error = Refusal(error.status_code, words, headers=dict(error.headers or {}))
        if not isinstance(error, Refusal):
            logger.error("the dashboard could not answer", exc_info=error)
            error = Refusal(500, "Something is wrong here. The log of the server says what.")
        is_away = isinstance(error, Away)
        title = _AWAY if is_away else _TITLES.get(error.status, "Not possible")
        shown = {"refusal": error, "retries": is_away and request.method in ("GET", "HEAD")}
        return _refusing(self._rendered(request, "error.html", title, shown), error)

    # -- pages

    def _page_of(self, page: Page) -> Any:
        async def answer(request: Request) -> Response:
            self._check_open()
            ask = self._ask(request.path_params, request.query_params)
            reading = await self._readings.get(page, ask)
            if reading.refusal is None:
                return self._rendered(request, page.template, page.title, self._shown(page, ask, reading))
            if reading.before is None:
                raise reading.refusal
            # The last one, which says how old it is.
            shown = {**self._shown(page, ask, reading.before), "away": reading.refusal}
            return _refusing(self._rendered(request, page.template, page.title, shown), reading.refusal)

        return answer

    def _ask(self, path: Mapping[str, str], query: QueryParams) -> Ask:
        return Ask(
            app=self.app,
            path=dict(path),
            query=query,
            hide_payloads=self._hide_payloads,
            replays=self._replays,
            beside=self.beside,
        )

    def _shown(self, page: Page, ask: Ask, reading: Reading) -> dict[str, Any]:
        return {"page": page, "query": ask.query, "read_at": reading.at, **reading.data}

    def _rendered(self, request: Request, template: str, title: str, shown: Mapping[str, Any]) -> Response:
        cookie = request.cookies.get(COOKIE) or new_cookie()
        words = self._said(request)
        everything = {**self._around(request, cookie), "title": title, "said": words, **shown}
        response = HTMLResponse(self._renderer.page(template, everything))
        flags: Any = {"httponly": True, "samesite": "strict", "secure": request.url.scheme == "https", "path": "/"}
        if COOKIE not in request.cookies:
            response.set_cookie(COOKIE, cookie, **flags)
        if _SAID in request.cookies:
            response.delete_cookie(_SAID, **flags)
        return response

    def _around(self, request: Request, cookie: str, at: str | None = None) -> dict[str, Any]:
        """What every page has around what it shows."""
        at = own_address(request.scope) if at is None else at
        visitor: Visitor | None = request.scope.get("onward.visitor")
        may_act = visitor is not None and self._gate.may_act(visitor)
        return {
            "app_title": self.title,
            "base": base_of(urlsplit(at).path),
            "at": at,
            "version": self._version,
            "navigation": self._navigation if visitor is not None else [],
            "page": None,
            "visitor": visitor,
            "is_guarded": self._door.is_guarded,
            "may_act": may_act,
            "token": self._door.token(cookie, visitor) if may_act and visitor is not None else "",
            "place": self.app.place,
            "read_at": None,
            "away": None,
            "retries": False,
        }

    # -- live

    async def _live(self, request: Request) -> Response:
        """The parts of a page that have changed, as they change (server-sent events)."""
        self._check_open()
        at = request.query_params.get("at", "")
        try:
            split = urlsplit(at)
        except ValueError:
            raise NotThere(_NOTHING) from None
        page, params = self._found(unquote(split.path))
        if self._streams >= _MOST_STREAMS:
            raise Refusal(503, "Too many pages are open.")
        ask = self._ask(params, QueryParams(split.query))
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=_STREAMED)
        cookie = request.cookies.get(COOKIE, "")
        around = self._around(request, cookie, at)
        body = self._changes(page, ask, {**around, "title": page.title, "said": None})
        return StreamingResponse(body, media_type="text/event-stream", headers=_STREAMED)

    def _found(self, path: str) -> tuple[Page, Mapping[str, str]]:
        for route, page in self._pages:
            match, child = route.matches({"type": "http", "method": "GET", "path": path, "root_path": ""})
            if match is Match.FULL:
                return page, child["path_params"]
        raise NotThere(_NOTHING)

    async def _changes(self, page: Page, ask: Ask, around: Mapping[str, Any]) -> AsyncIterator[bytes]:
        self._streams += 1
        try:
            with self._readings.watched(page, ask):
                ends = asyncio.get_running_loop().time() + _STREAM_SECONDS
                sent: dict[str, str] = {}
                yield b"retry: 2000\n\n"
                while asyncio.get_running_loop().time() < ends and not self._stopping.is_set():
                    pause = self._readings.pause(page)
                    reading = await self._readings.get(page, ask, no_older_than=pause * 0.9)
                    if reading.refusal is not None:
                        since = getattr(reading.refusal, "since", None)
                        yield _event("refused", {"words": reading.refusal.words, "since": since})
                    else:
                        shown = {**around, **self._shown(page, ask, reading)}
                        parts = self._renderer.live(page.template, shown)
                        lasting = {id: self._renderer.unchanging(html) for id, html in parts.items()}
                        changed = {id: html for id, html in parts.items() if sent.get(id) != lasting[id]}
                        sent = lasting
                        yield _event("parts", {"at": reading.at, "parts": changed})
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await self._stopping.wait()
        except Elsewhere:
            return  # no page that could be looked at: browsers are led on before they ask for this
        finally:
            self._streams -= 1

    # -- what is done

    async def _confirm(self, request: Request) -> Response:
        """Ask before something is done."""
        self._check_open()
        visitor = request.scope["onward.visitor"]
        self._gate.check(visitor)
        action = self._action(request)
        fields = parse_qs(request.url.query, keep_blank_values=True)
        form = self._gate.form(visitor, fields)
        question = await self._readings.once(self.app, lambda: action.ask(form))
        hidden = [(k, v) for k in action.records for v in fields.get(k, ())]
        shown = {"question": question, "action": action, "fields": hidden, "back": back_of(fields)}
        return self._rendered(request, "confirm.html", question.button, shown)

    async def _do(self, request: Request) -> Response:
        """Everything that changes anything comes through here, and through the gate."""
        self._check_open()
        words, form = await self._gate.act(request, request.scope["onward.visitor"], self._action(request))
        self._readings.forget()
        base = base_of(own_path(request.scope))
        response = Response(status_code=303, headers={"location": base + back_of(form.fields).removeprefix("/")})
        words = words if len(words) <= _LONGEST_SAID else f"{words[:_LONGEST_SAID]}…"
        text = base64.urlsafe_b64encode(words.encode()).decode()
        secure = request.url.scheme == "https"
        response.set_cookie(
            _SAID,
            f"{text}.{self._door.sign('said' + text)}",
            max_age=60,
            httponly=True,
            samesite="strict",
            secure=secure,
            path="/",
        )
        return response

    def _action(self, request: Request) -> Action:
        action = self._actions.get(request.path_params["action"])
        if action is None:
            raise NotThere("There is nothing of this name to do.")
        return action

    def _said(self, request: Request) -> str | None:
        """What was done before this page, as its signed cookie says."""
        text, _, signature = request.cookies.get(_SAID, "").partition(".")
        if not text or not self._door.is_ours("said" + text, signature):
            return None
        try:
            return base64.urlsafe_b64decode(text).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None

    # -- files

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        content = self._files.get(name)
        if content is None:
            raise NotThere(_NOTHING)
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        # Its address has the version in it, so it may be kept.
        return Response(content, media_type=kind, headers={"cache-control": "private, max-age=31536000, immutable"})


_STREAMED = {"x-accel-buffering": "no"}
_NOTHING = "There is nothing at this address."
_AWAY = "No answer"
_TITLES = {401: "Who are you?", 403: "Not allowed", 404: "Not found", 409: "Refused", 503: "Not now", 500: "An error"}


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotThere(_NOTHING)


def _refusing(response: Response, refusal: Refusal) -> Response:
    response.status_code = refusal.status
    response.headers.update(refusal.headers)
    return response


def _event(name: str, data: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
