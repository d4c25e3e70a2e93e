"""Who may look and who may act: visitors, the name a dashboard is called by, and tokens that only our pages know."""

import base64
import hashlib
import hmac
import inspect
import ipaddress
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from starlette.requests import Request

from onward.dashboard.refusal import Refusal
from onward.errors import ConfigurationError

Role: TypeAlias = Literal["look", "act"]
COOKIE = "onward_dashboard"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::\d*)?")
_SHORTEST_SECRET = 16
_NO_GUARD = (
    "This dashboard asks nobody who they are, so it answers only on this machine (localhost). "
    "Give it users= or authenticate= to be reached from elsewhere."
)
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With no-referrer, browsers would say `Origin: null` of our own forms too, and nobody could tell whose they are.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Of every answer."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who was let in.

    >>> Visitor("ada", role="act").may_act
    True
    """

    name: str
    """As the audit log shows it."""
    role: Role = "look"

    @property
    def may_act(self) -> bool:
        return self.role == "act"


Authenticate: TypeAlias = Callable[[Request], Visitor | Awaitable[Visitor | None] | None]
ANYONE = Visitor("anyone", "act")


class Door:
    """Lets visitors in: by the host application's hook, by names with passwords, or from this machine only."""

    def __init__(
        self,
        *,
        users: Mapping[str, str] | None,
        authenticate: Authenticate | None,
        hosts: Sequence[str] | None,
        secret: str | None,
    ) -> None:
        if users is not None and authenticate is not None:
            raise ConfigurationError("users= and authenticate=: give one of them")
        if users is not None and not all(name and password and ":" not in name for name, password in users.items()):
            raise ConfigurationError("users=: each needs a name without a colon, and a password")
        if secret is not None and len(secret) < _SHORTEST_SECRET:
            # An empty variable of the environment, say: then anybody could sign.
            raise ConfigurationError(f"secret= has to be {_SHORTEST_SECRET} characters or more that nobody can guess")
        self._users = None if users is None else {name: _digest(password) for name, password in users.items()}
        self._authenticate = authenticate
        self.is_guarded = users is not None or authenticate is not None
        self._hosts = hosts if hosts is not None else (None if self.is_guarded else _LOOPBACK)
        # One of its own for each process, unless several share their visitors.
        self._key = secrets.token_bytes(32) if secret is None else hashlib.sha256(secret.encode()).digest()

    async def visitor(self, request: Request) -> Visitor:
        """Who this is; raises Refusal for whoever may not come in."""
        self._check_host(request)
        if self._users is not None:
            return self._by_password(request, self._users)
        if self._authenticate is not None:
            found = self._authenticate(request)
            visitor = await found if inspect.isawaitable(found) else found
            if visitor is None:
                raise Refusal(403, "You are not allowed to see this.")
            if not isinstance(visitor, Visitor):  # such as False: whoever means to refuse must not let in
                raise TypeError(f"authenticate= has to give a Visitor or None, it gave a {type(visitor).__name__}")
            return visitor
        if not _is_here(request):
            raise Refusal(403, _NO_GUARD)
        return ANYONE

    def _by_password(self, request: Request, users: Mapping[str, bytes]) -> Visitor:
        name, password = _credentials(request)
        # Compared also for a name that is not known, so that it takes as long.
        expected = users.get(name, b"\0" * 32)
        if not hmac.compare_digest(_digest(password), expected) or name not in users:
            challenge = {"www-authenticate": 'Basic realm="onward", charset="UTF-8"'}
            raise Refusal(401, "Say who you are: a name and a password are needed.", headers=challenge)
        return Visitor(name, "act")

    def _check_host(self, request: Request) -> None:
        """A name of somebody else's that leads here is how a page elsewhere would read this one (DNS rebinding)."""
        if self._hosts is None:
            return
        host = request.headers.get("host", "")
        if _host_name(host) not in self._hosts:
            raise Refusal(
                421 if self.is_guarded else 403, f"This dashboard does not answer to the name {host[:100]!r}."
            )

    # -- writes

    def token(self, cookie: str, visitor: Visitor) -> str:
        """What forms of ours carry: made of the visitor's cookie by a key that only we know."""
        return self.sign(f"token\0{cookie}\0{visitor.name}")

    def sign(self, text: str) -> str:
        """Shows later that a text was ours."""
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def is_ours(self, text: str, signature: str) -> bool:
        return hmac.compare_digest(self.sign(text).encode(), signature.encode())

    def check_write(self, request: Request, visitor: Visitor, token: str) -> None:
        """Raise Refusal unless a form of ours was sent, by whom it was made for."""
        _check_origin(request)
        cookie = request.cookies.get(COOKIE, "")
        if not cookie or not hmac.compare_digest(self.token(cookie, visitor).encode(), token.encode()):
            raise Refusal(
                403, "This form was not made for you, or is too old. Go back, reload the page, and try again."
            )


def _check_origin(request: Request) -> None:
    """Raise Refusal for what a page of somebody else's sends; browsers say so in one of two ways."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is None and origin is None:
        raise Refusal(403, "Nothing says which page this came from, so nothing was done.")
    if site not in (None, "same-origin"):
        raise Refusal(403, "This came from a page elsewhere, so nothing was done.")
    if origin is not None and _place(origin) != request.headers.get("host", "").lower():
        raise Refusal(403, "This came from a page elsewhere, so nothing was done.")


def _place(origin: str) -> str | None:
    """Its host and port; None for what no browser says."""
    scheme, _, place = origin.lower().partition("://")
    return place if scheme in ("http", "https") else None


def _credentials(request: Request) -> tuple[str, str]:
    kind, _, rest = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
    except ValueError:
        return "", ""
    return name, password


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _host_name(header: str) -> str:
    """Without its port; empty for what is no name of a host."""
    found = _HOST.fullmatch(header.strip().lower())
    return "" if found is None else found[1]


def _is_here(request: Request) -> bool:
    """Whether the other end of the connection is on this machine; a Unix socket has no address."""
    return request.client is None or is_loopback(request.client.host)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def new_cookie() -> str:
    """A name for a visitor's browser, which nobody can guess."""
    return secrets.token_urlsafe(24)
