"""What other programs put into a queue need not be JSON; it must not hide what is."""

import msgspec
from msgspec import Raw


def as_json(data: bytes) -> Raw:
    """As it is where it is JSON, and else as a text.

    >>> bytes(as_json(b"[1]")), bytes(as_json(b"plain text"))
    (b'[1]', b'"plain text"')
    """
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Raw(msgspec.json.encode(data.decode(errors="replace")))
    return Raw(data)
