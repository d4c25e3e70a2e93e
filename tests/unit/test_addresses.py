"""What is shown of addresses, and which are refused."""

import doctest

import pytest

from onward import addresses
from onward.addresses import shown, wrong_address

WRONG = [
    "redis://:TopS/3cret@host", "redis://:TopS?3cret@host", "redis://:TopS#3cret@host", "redis://:TopS%zz3cret@host",
    "redis://:TopS%003cret@host", "redis://:TopS%ff3cret@host",
    "redis://:TopS@3cret@host", "redis://u:TopS3cret",
    "redis://u:TopS3cret@host:port", "redis://u:TopS3cret@host:99999", "redis://u:TopS3cret@[::1",
    "redis://u:TopS[3cret@host", "redis://u:TopS\n3cret@host", "redis://u:TopS℀3cret@host", "redis://u:TopS\ud8003cret@h",
    "redis://host/0?password=TopS&3cret", "redis:/u:TopS3cret@host", "host=h password=TopS3cret", "u:TopS3cret@host",
    "http://u:TopS3cret@host", "redis+foo://u:TopS3cret@host", "redis://u:TopS3cret@host/TopS@3cret", "", "redis",
]  # fmt: skip
RIGHT = [
    ("redis://localhost", "redis://localhost"), ("redis://u:TopS3cret@localhost:6379/0", "redis://localhost:6379/0"),
    ("redis://TopS3cret@host", "redis://host"), ("redis://:TopS%2F%40%3A3cret@host/1", "redis://host/1"),
    ("redis://[::1]:6379/0", "redis://[::1]:6379/0"), ("redis://host?password=TopS3cret", "redis://host"),
    ("redis://a:1,b:2/0?x=y", "redis://a:1,b:2/0"), ("redis:///db?host=/tmp&user=a@b", "redis://…"),
    ("redis://u:TopS3cret@/db?host=/tmp", "redis:///db"), ("redis://%2Ftmp/db", "redis://%2Ftmp/db"),
]  # fmt: skip


@pytest.mark.parametrize("address", WRONG)
def test_what_cannot_be_read_is_refused_without_its_password(address: str) -> None:
    problem = wrong_address("target", address, ["redis"])

    assert problem is not None
    for text in (problem, shown(address)):
        assert not any(part in text for part in ("TopS", "3cret"))


@pytest.mark.parametrize(("address", "safe"), RIGHT)
def test_an_address_is_shown_without_user_password_and_options(address: str, safe: str) -> None:
    assert wrong_address("target", address, ["redis"]) is None
    assert shown(address) == safe


def test_files_are_shown_and_other_objects_named() -> None:
    assert shown("sqlite:///shop/jobs.db") == "sqlite:///shop/jobs.db"
    assert shown("memory://") == "memory://"
    assert shown(b"redis://u:TopS3cret@host") == "a bytes"
    assert wrong_address("target", 7, ["redis", "rediss"]) == (
        "target must be an address like redis://… or rediss://…, got: a int"
    )


def test_the_examples_are_true() -> None:
    assert doctest.testmod(addresses).failed == 0
