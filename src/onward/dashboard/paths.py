"""Where a page is: below the dashboard, wherever that is mounted. Links are relative, so nobody needs to know where."""

from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote

from starlette.types import Scope

LONGEST = 32_000
"""Characters of an address; the ids of a page that was ticked as a whole are 9,000."""


def own_path(scope: Scope) -> str:
    """The path below where the dashboard is mounted: hosts say what they cut off, or leave it before the path.

    Starlette says what stands above in all, also what a proxy has cut off (`FastAPI(root_path=…)`), and which part of
    that is no mount of its own.
    """
    path, above = str(scope["path"]), str(scope.get("root_path", ""))
    for mount in (above, above.removeprefix(str(scope.get("app_root_path", "")))):
        if mount and (path == mount or path.startswith(f"{mount}/")):
            return path[len(mount) :]
    asked = _asked(scope)
    if path != "/" and path.endswith("/") and asked and not unquote(asked).endswith("/"):
        return path[:-1]  # which was Litestar's: it ends every path below a mount with a slash
    return path


def below_mount(scope: Scope) -> Scope:
    """A request as it would be if the dashboard were mounted nowhere."""
    return {**scope, "path": own_path(scope) or "/", "root_path": "", "app_root_path": ""}


def own_address(scope: Scope) -> str:
    """The same as a browser has it, and with what comes behind it: a name in it may have a slash, written as %2F."""
    own, asked = own_path(scope) or "/", _asked(scope)
    above = unquote(asked).count("/") - own.count("/")
    path = "/" + asked.split("/", above + 1)[-1] if unquote(asked).endswith(own) and above >= 0 else quote(own)
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path


def _asked(scope: Scope) -> str:
    """The whole path as it was sent, where the server tells."""
    return bytes(scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")


def base_of(path: str) -> str:
    """From a page back to the dashboard's own root. Links are relative, so that they fit wherever it is mounted, and
    whatever a proxy in front cuts off.

    >>> [base_of("/"), base_of("/jobs"), base_of("/jobs/7")]
    ['./', './', '../']
    """
    return "../" * (path.count("/") - 1) or "./"


def without_slash(scope: Scope) -> str | None:
    """Where to go when the root was asked for without its last slash, from which no link would be right."""
    asked = _asked(scope) or quote(str(scope["path"]))
    if own_path(scope) not in ("", "/") or asked.endswith("/"):
        return None
    name = asked.rpartition("/")[2]
    query = scope.get("query_string", b"").decode("latin-1")
    return f"./{name}/" + (f"?{query}" if query else "")


def back_of(fields: Mapping[str, Sequence[str]]) -> str:
    """The page to go back to: one of ours."""
    back = (fields.get("back") or ["/"])[0]
    is_ours = back.startswith("/") and not back.startswith("//") and back.isprintable() and "\\" not in back
    return back if is_ours and back.isascii() and len(back) < LONGEST else "/"
