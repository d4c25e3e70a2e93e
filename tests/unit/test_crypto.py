"""Keys: which are taken, which encrypt, and what cannot be decrypted."""

import base64
import builtins
import pickle
from typing import Any

import pytest

from onward.crypto import Encryption, is_sealed, key_id_of
from onward.errors import ConfigurationError, InvalidKey

OLD, NEW = Encryption.new_key(), Encryption.new_key()


def test_what_is_sealed_can_be_opened_with_the_same_key_about_the_same_thing() -> None:
    encryption = Encryption({"2026-11": NEW})

    sealed = encryption.seal("smörgås".encode(), b"job 1")

    assert is_sealed(sealed)
    assert key_id_of(sealed) == "2026-11"
    assert encryption.open(sealed, b"job 1").decode() == "smörgås"
    assert encryption.seal(b"same", b"job 1") != encryption.seal(b"same", b"job 1")


@pytest.mark.parametrize("size", [16, 24, 32])
def test_a_key_is_bytes_or_base64_of_either_kind(size: int) -> None:
    raw = bytes(range(240, 240 + 16)) * 2
    sealed = Encryption({"a": raw[:size]}).seal(b"x", b"")

    for text in (base64.b64encode(raw[:size]).decode(), base64.urlsafe_b64encode(raw[:size]).decode() + "\n"):
        assert Encryption({"a": text}).open(sealed, b"") == b"x"


def test_the_current_key_encrypts_and_all_decrypt() -> None:
    before = Encryption({"old": OLD})
    after = Encryption({"old": OLD, "new": NEW}, current="new")

    assert after.open(before.seal(b"x", b""), b"") == b"x"
    assert key_id_of(after.seal(b"x", b"")) == "new"
    with pytest.raises(LookupError):
        before.open(after.seal(b"x", b""), b"")


def test_whatever_is_changed_is_refused() -> None:
    encryption = Encryption({"a": OLD, "b": OLD}, current="a")
    sealed = encryption.seal(b"x" * 20, b"job 1")
    head, _, data = sealed.rpartition(":")
    raw = base64.urlsafe_b64decode(data + "=" * (-len(data) % 4))
    changed = [
        f"{head}:{base64.urlsafe_b64encode(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]).decode().rstrip('=')}"
        for at in range(len(raw))
    ]

    wrong = [*changed, f"{head}:{data[:-4]}", f"{head}:", f"{head}:AAAA", head, f"{sealed}==", f"{sealed}\n"]
    wrong += [sealed.replace(":a:", ":b:"), sealed.replace(":1:", ":2:"), "onward:sealed:", sealed[:-1] + "é"]
    for text in wrong:
        with pytest.raises(ValueError):  # noqa: PT011 - the text is what was given
            encryption.open(text, b"job 1")
    with pytest.raises(ValueError):  # noqa: PT011
        encryption.open(sealed, b"job 2")


@pytest.mark.parametrize(
    ("keys", "options", "said"),
    [
        ({}, {}, "expected keys by their ids"),
        ([NEW], {}, "expected keys by their ids"),
        ({"a": b"short"}, {}, "key 'a' has 5 bytes"),
        ({"a": "hunter2 hunter2!"}, {}, "key 'a' is not base64"),
        ({"a": 7}, {}, "key 'a' is a int"),
        ({NEW: "a"}, {}, "the id of a key"),
        ({7: NEW}, {}, "the id of a key"),
        ({"a": OLD, "b": NEW}, {}, "current= one of a, b"),
        ({"a": OLD}, {"current": "c"}, "current= is none of the keys' ids: a"),
        ({"a": NEW}, {"current": NEW}, "current= is none of the keys' ids: a"),
    ],
)
def test_a_bad_key_is_refused_without_being_told(keys: Any, options: Any, said: str) -> None:
    with pytest.raises(InvalidKey) as refused:
        Encryption(keys, **options)

    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert NEW not in str(refused.value)


def test_keys_come_from_the_environment_the_first_one_encrypts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_KEYS", f"2026-11:{NEW}, 2026-05:{OLD}")

    encryption = Encryption.from_environment(only_secrets=True)

    assert (encryption.current, encryption.key_ids) == ("2026-11", ["2026-05", "2026-11"])
    assert encryption.only_secrets


@pytest.mark.parametrize("value", ["", " , ", f"a:{'x' * 44},a:{'y' * 44}", "hunter2hunter2hunter2"])
def test_an_environment_without_keys_says_what_is_expected(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", value)

    with pytest.raises(InvalidKey) as refused:
        Encryption.from_environment("KEYS")

    assert "KEYS: " in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_keys_are_neither_shown_nor_pickled() -> None:
    encryption = Encryption({"a": OLD})

    assert repr(encryption) == "<Encryption current='a', keys: a>"
    with pytest.raises(TypeError):
        pickle.dumps(encryption)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *arguments: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return found(name, *arguments)

    found = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", missing)

    with pytest.raises(ConfigurationError, match=r"onward\[crypto\]"):
        Encryption({"a": OLD})
