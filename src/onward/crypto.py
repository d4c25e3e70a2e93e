"""Encrypt payloads, and mark fields as secret. Encrypting needs the extra `crypto`.

>>> from dataclasses import dataclass
>>> from typing import Annotated
>>> from onward import Attempt, Onward, job
>>> @dataclass
... class Payment:
...     order: int
...     card: Annotated[str, Secret]
>>> @job("pay")
... async def pay(attempt: Attempt[Payment]) -> None: ...
>>> encryption = Encryption({"2026-11": Encryption.new_key()})
>>> app = Onward("memory://", jobs=[pay], encryption=encryption)
"""

import base64
import binascii
import os
import re
from collections.abc import Mapping
from typing import Any, Self, final

from onward.errors import (
    ConfigurationError,
    DecryptionError,
    InvalidKey,
    PayloadNotEncrypted,
    PayloadTampered,
    UnknownKey,
)

__all__ = [
    "DecryptionError",
    "Encryption",
    "InvalidKey",
    "PayloadNotEncrypted",
    "PayloadTampered",
    "Secret",
    "UnknownKey",
]

MARK = "onward:sealed:"
"""How whatever is encrypted begins."""
_FORM = f"{MARK}1:"
_NONCE = 12
_SIZES = (16, 24, 32)
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SEALED = re.compile(rf"{MARK}1:(?P<key_id>[A-Za-z0-9._-]{{1,64}}):(?P<data>[A-Za-z0-9_-]*)")


@final
class Secret:
    """Marks a field of a payload: `card: Annotated[str, Secret]`.

    It is masked in listings, logs, events and errors, and encrypted wherever there is an `Encryption`.
    """


@final
class Encryption:
    """AES-GCM with named keys: one encrypts, all decrypt.

    >>> keys = {"2026-11": Encryption.new_key(), "2026-05": Encryption.new_key()}
    >>> Encryption(keys, current="2026-11")
    <Encryption current='2026-11', keys: 2026-05, 2026-11>
    """

    def __init__(
        self,
        keys: Mapping[str, bytes | str],
        *,
        current: str | None = None,
        only_secrets: bool = False,
        accept_plain: bool = True,
    ) -> None:
        """`keys`: by id, each of 16, 24 or 32 bytes, or such bytes in base64. `current`: the one that encrypts; it need
        not be said of a single one. `only_secrets`: encrypt the fields marked `Secret`, not whole payloads.
        `accept_plain`: whether rows that are not encrypted can be read, such as those from before."""
        given: Any = keys
        if not isinstance(given, Mapping) or not given:
            raise InvalidKey('Encryption: expected keys by their ids, such as {"2026-11": Encryption.new_key()}')
        self._ciphers = {_checked_id(key_id): _cipher(key_id, key) for key_id, key in keys.items()}
        if current is None and len(self._ciphers) > 1:
            raise InvalidKey(f"Encryption: say which key encrypts: current= one of {', '.join(sorted(keys))}")
        self.current = next(iter(self._ciphers)) if current is None else current
        if self.current not in self._ciphers:
            # Not what was given: whoever mixes up ids and keys would find a key in the log.
            raise InvalidKey(f"Encryption: current= is none of the keys' ids: {', '.join(sorted(keys))}")
        self.only_secrets, self.accept_plain = only_secrets, accept_plain

    @classmethod
    def from_environment(cls, variable: str = "ONWARD_KEYS", **options: Any) -> Self:
        """With the keys in an environment variable: `id:base64`, separated by commas; the first one encrypts."""
        value = os.environ.get(variable, "")
        pairs = [pair.strip().partition(":") for pair in value.split(",") if pair.strip()]
        if not pairs or not all(colon for _, colon, _ in pairs):
            raise InvalidKey(f"{variable}: expected id:base64, the latter as Encryption.new_key() makes it")
        if len({key_id for key_id, _, _ in pairs}) < len(pairs):
            raise InvalidKey(f"{variable}: two keys have one id")
        return cls({key_id: key for key_id, _, key in pairs}, current=pairs[0][0], **options)

    @staticmethod
    def new_key() -> str:
        """A fresh key of 256 bits, in base64.

        >>> len(base64.b64decode(Encryption.new_key()))
        32
        """
        return base64.b64encode(os.urandom(32)).decode()

    @property
    def key_ids(self) -> list[str]:
        return sorted(self._ciphers)

    def __repr__(self) -> str:
        return f"<Encryption current={self.current!r}, keys: {', '.join(self.key_ids)}>"

    def __reduce__(self) -> Any:
        raise TypeError("keys are not pickled")

    def seal(self, data: bytes, about: bytes) -> str:
        """The data as text that cannot be read without the key, and cannot be moved to where `about` is another."""
        nonce = os.urandom(_NONCE)
        sealed = self._ciphers[self.current].encrypt(nonce, data, _header(self.current) + about)
        return f"{_FORM}{self.current}:{base64.urlsafe_b64encode(nonce + sealed).decode().rstrip('=')}"

    def open(self, text: str, about: bytes) -> bytes:
        """What was sealed. LookupError: another key is needed. ValueError: it was changed, or moved."""
        found = _SEALED.fullmatch(text)
        if found is None:
            raise ValueError(text)
        key_id, data = found["key_id"], found["data"]
        cipher = self._ciphers[key_id]
        raw = base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))
        try:
            opened: bytes = cipher.decrypt(raw[:_NONCE], raw[_NONCE:], _header(key_id) + about)
        except Exception as error:  # InvalidTag, or a ValueError of what is too short
            raise ValueError(text) from error
        return opened


def is_sealed(value: object) -> bool:
    """Whether this is the text of something encrypted."""
    return isinstance(value, str) and value.startswith(MARK)


def key_id_of(text: str) -> str | None:
    """Which key something was encrypted with, if that can be told."""
    found = _SEALED.match(text)
    return None if found is None else found["key_id"]


def _header(key_id: str) -> bytes:
    return f"{_FORM}{key_id}:".encode()


def _checked_id(key_id: object) -> str:
    if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
        # Not what was given either.
        raise InvalidKey("Encryption: the id of a key is 1 to 64 letters, digits, dots, dashes and underscores")
    return key_id


def _cipher(key_id: str, key: object) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigurationError("Encryption needs the package cryptography: install onward[crypto]") from error
    return AESGCM(_key(key_id, key))


def _key(key_id: str, key: object) -> bytes:
    if isinstance(key, str):
        try:
            key = base64.b64decode(key.strip().replace("-", "+").replace("_", "/"), validate=True)
        except (binascii.Error, ValueError):
            raise InvalidKey(f"Encryption: key {key_id!r} is not base64, as Encryption.new_key() makes it") from None
    if not isinstance(key, bytes | bytearray):
        raise InvalidKey(f"Encryption: key {key_id!r} is a {type(key).__name__}: expected bytes, or base64 text")
    if len(key) not in _SIZES:
        raise InvalidKey(f"Encryption: key {key_id!r} has {len(key)} bytes: expected 16, 24 or 32")
    return bytes(key)
