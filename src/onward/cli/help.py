"""Help that is whole at any width."""

from typing import Any

from typer.core import TyperGroup


class WholeHelp(TyperGroup):
    """A group that shows the first sentence of each command, where the library would cut it to fit."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, _first_sentence(command.help or "")) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _first_sentence(text: str) -> str:
    words = " ".join(text.split())
    sentence, stop, _ = words.partition(". ")
    return sentence + stop.strip()
