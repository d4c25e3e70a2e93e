"""Addresses of servers, which may hold passwords: what may be shown of one, and what is wrong with one, in words.

Client libraries name the part of an address that they cannot read. In `redis://:se/cret@host` they take `se` for a
port, and say so. Addresses are therefore checked here first, and refused without a word of what they hold.
"""

import re
from collections.abc import Collection
from urllib.parse import unquote_to_bytes, urlsplit

_HOST = r"(?:\[[0-9A-Za-z:.%_-]+\]|[^\[\]:/?#@,\s]*)(?::\d{1,5})?"
_HOSTS = rf"{_HOST}(?:,{_HOST})*"
_SAFE = re.compile(rf"(?P<scheme>[A-Za-z][\w+.-]*)://(?:[^/?#]*@)?(?P<place>{_HOSTS}(?:/[^?#@:]*)?)(?:[?#][^@]*)?")
_WHOLE = re.compile(
    rf"[A-Za-z][\w+.-]*://(?:(?P<login>[^/?#@\[\]]*)@)?(?P<hosts>{_HOSTS})(?P<path>/[^?#@\[\]]*)?(?:\?(?P<query>[^#]*))?"
)
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]*):/")
_WORD = re.compile(r"[\w.-]{1,40}", re.ASCII)
_FILES = ("sqlite", "memory")
_UNPRINTABLE = re.compile("[\\s\\0-\\x1f\\x7f\\ud800-\\udfff]")
_ENCODED_WRONG = re.compile("%(?![0-9A-Fa-f]{2})|%00")
_ADVICE = "in a user name or password, write / ? # @ % [ ] as urllib.parse.quote(password, safe='') does"


def shown(address: object) -> str:
    """What may be shown of an address: where it leads, and nothing that could be, or be a part of, a password.

    >>> shown("postgresql://ada:secret@db.example:5432/shop?password=secret")
    'postgresql://db.example:5432/shop'
    >>> shown("postgresql://ada:sec/ret@db.example/shop")
    'postgresql://…'
    >>> shown("postgres")
    'postgres'
    >>> shown("host=db.example password=secret")
    '…'
    """
    if not isinstance(address, str):
        return "None" if address is None else f"a {type(address).__name__}"
    begins = _SCHEME.match(address)
    if begins is None:
        return address if _WORD.fullmatch(address) else "…"
    scheme = begins["scheme"]
    if scheme.partition("+")[0] in _FILES and "@" not in address:
        return address.partition("?")[0]
    safe = _SAFE.fullmatch(address)
    return f"{scheme}://…" if safe is None or _UNPRINTABLE.search(address) else f"{scheme}://{safe['place']}"


def wrong_address(option: str, value: object, schemes: Collection[str]) -> str | None:
    """For addresses with a server in them: what is wrong, or None. No client reads one differently that passes.

    >>> wrong_address("target", "localhost:6379", ["redis", "rediss"])
    'target must be an address like redis://… or rediss://…, got: …'
    """
    if not isinstance(value, str) or "://" not in value or value.partition("://")[0] not in schemes:
        return f"{option} must be an address like {_example(schemes)}, got: {shown(value)}"
    problem = _problem(value)
    return None if problem is None else f"{option} ({shown(value)}) {problem}"


def _problem(address: str) -> str | None:
    if _UNPRINTABLE.search(address):
        return f"has a space, a control character or a lone surrogate; {_ADVICE}"
    parts = _WHOLE.fullmatch(address)
    if parts is None:
        return f"cannot be read: after :// come user:password@, host:port, /name and ?option=value; {_ADVICE}"
    query = parts["query"] or ""
    if any(_ENCODED_WRONG.search(part or "") for part in parts.groups()):
        return f"has a % that is not followed by two hexadecimal digits, or %00; {_ADVICE}"
    if not all("=" in pair for pair in query.split("&") if pair):
        return f"has an option without a value after the ?; {_ADVICE}"
    if any(not 0 < int(port) < 65_536 for port in re.findall(r":(\d+)(?=,|$)", parts["hosts"])):
        return "has a port that is none: they are 1 to 65535"
    try:
        unquote_to_bytes(address).decode()
        urlsplit(address)
    except UnicodeDecodeError:
        return f"has %-signs that stand for no text (UTF-8); {_ADVICE}"
    except ValueError:  # it shows what it does not like
        return f"has a letter that reads as several; {_ADVICE}"
    return None


def _example(schemes: Collection[str]) -> str:
    return " or ".join(f"{scheme}://…" for scheme in schemes)
