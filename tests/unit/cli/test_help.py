"""Help texts are whole at any width, and every option is a variable too."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from onward.cli.commands import cli


def commands(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and every group, with the words that call it."""
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *words, name)


ALL = dict(commands(typer.main.get_command(cli)))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_help_text_is_cut(words: tuple[str, ...], width: int) -> None:
    command = ALL[words]

    said = CliRunner().invoke(cli, [*words, "--help"], terminal_width=width, color=False)

    assert said.exit_code == 0
    shown = "".join(said.stdout.split()).replace("-", "")
    texts = [command.help or "", *(getattr(option, "help", None) or "" for option in command.params)]
    texts += [
        " ".join((below.help or "").split()).split(". ")[0] for below in getattr(command, "commands", {}).values()
    ]
    assert [text for text in texts if "".join(text.split()).replace("-", "").rstrip(".") not in shown] == []
    assert "..." not in said.stdout.partition("\n\n")[2]  # behind the usage


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_option_is_a_variable_named_after_it(words: tuple[str, ...]) -> None:
    for option in ALL[words].params:
        flags = [word for word in option.opts if word.startswith("--")]
        if not flags or option.hidden or flags[0] in ("--help", "--version"):
            continue
        if "completion" not in flags[0]:
            name = flags[0][2:].replace("-", "_").upper()
            # Those of the dashboard are many and have common names: one file of variables may serve every command.
            assert option.envvar in (f"ONWARD_{name}", f"ONWARD_DASHBOARD_{name}")


def test_there_is_completion_for_shells() -> None:
    shown = CliRunner().invoke(cli, ["--show-completion", "bash"], prog_name="onward")

    assert shown.exit_code in (0, 1)  # 1: the shell of this process is none it knows
    assert "completion" in CliRunner().invoke(cli, ["--help"]).stdout
