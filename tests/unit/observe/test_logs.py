"""Lines of the log, whatever is in them."""

import json
import logging
from typing import Any

import pytest

from onward.observe.logs import _SEEN, AttemptFilter, JsonFormatter, LogSettings, TextFormatter, log_settings, seen


class Unspeakable:
    def __str__(self) -> str:
        raise ValueError("no")


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("shop", logging.INFO, __file__, 1, message, arguments, None)
    vars(made).update(extra)
    return made


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (7, 7),
        ({"a": [1, None]}, {"a": [1, None]}),
        (ValueError("odd"), "odd"),
        ("\ud800", "\ufffd"),
        (Unspeakable(), "<its text cannot be made: ValueError>"),
        (float("nan"), None),
    ],
)
def test_any_field_becomes_json_on_one_line(value: Any, told: Any) -> None:
    line = JsonFormatter().format(record("two\nlines", field=value))

    assert "\n" not in line
    assert json.loads(line)["field"] == told


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("to postgresql://ada:se:cr/et@db/shop now", "to postgresql://ada:***@db/shop now"),
        ("redis://:se@cret@host", "redis://:***@host"),
        ("host=db password=secret user=u", "host=db password=*** user=u"),
        ("PGPassWord=secret", "PGPassWord=***"),
        ("https://example.org/a=b", "https://example.org/a=b"),
        ("nothing", "nothing"),
    ],
)
def test_passwords_of_addresses_are_masked(said: str, told: str) -> None:
    given = record("%s", said, url=said)

    assert AttemptFilter().filter(given)

    assert given.getMessage() == told
    assert vars(given)["url"] == told


def test_passwords_in_tracebacks_are_masked() -> None:
    given = record("failed")
    try:
        raise ConnectionError("amqp://u:secret@host")
    except ConnectionError as error:
        given.exc_info = (type(error), error, error.__traceback__)

    AttemptFilter().filter(given)

    assert "amqp://u:***@host" in JsonFormatter().format(given)
    assert "secret" not in logging.Formatter().format(given)


def test_settings_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    before = logging.root.level
    assert log_settings() is None

    LogSettings(logging.ERROR, "json", 3).apply()

    assert log_settings() == LogSettings(logging.ERROR, "json", 3)
    logging.root.setLevel(before)


def test_what_a_line_for_people_holds_steers_no_terminal() -> None:
    line = TextFormatter("%(message)s").format(record("a\x1b[2J\u202eb\x9bc\nd\te"))

    assert line == "a␛[2J\ufffdb\ufffdc\nd\te"


def test_each_of_the_signs_that_steer_is_found_in_a_line_without_others() -> None:
    assert [chr(code) for code in _SEEN if seen(chr(code)) == chr(code)] == []
    assert seen("paid: 7 €, naïve") == "paid: 7 €, naïve"


def test_each_line_has_its_own_time() -> None:
    lines, plain = TextFormatter("%(asctime)s"), logging.Formatter("%(asctime)s")
    for created in (1_000.25, 1_000.999, 1_001.0, 1_000.5, 86_400.001):
        said = record("x")
        said.created, said.msecs = created, created % 1 * 1_000
        assert lines.format(said) == plain.format(said)
    assert TextFormatter("%(asctime)s", "%H").format(said) == logging.Formatter("%(asctime)s", "%H").format(said)
