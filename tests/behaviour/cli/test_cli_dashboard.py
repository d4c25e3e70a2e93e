"""What `onward dashboard` refuses, before it listens."""

from collections.abc import Callable
from pathlib import Path

import pytest

from onward.cli import dashboard


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/onward.db"


def test_who_could_be_reached_from_elsewhere_must_ask_for_a_password(
    onward: Callable[..., object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str
) -> None:
    monkeypatch.delenv(dashboard.PASSWORD, raising=False)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")

    for words, *options in (
        ("can be reached from elsewhere: say --user", "--host", "0.0.0.0"),
        ("can be reached from elsewhere: say --user", "--host", "shop.example"),
        ("can be reached from elsewhere: say --user", "--host", "::"),
        ("needs a password", "--host", "0.0.0.0", "--user", "ada"),
        ("needs a password", "--user", "ada", "--password-file", str(tmp_path / "empty")),
        ("cannot be read", "--user", "ada", "--password-file", str(tmp_path / "binary")),
        ("say one of them", "--payloads", "--hide-payloads"),
        ("not a queue", "--queue", "orders:charge"),
        ("not a flow", "--flow", "orders:charge"),
        ("no module named", "--queue", "nowhere:letters"),
        ("there is no file", "--port", "0"),
    ):
        said = onward("dashboard", target, *options, code=1)
        assert words in said.words  # type: ignore[attr-defined]
