"""The entry point."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from onward.cli.commands import cli

_INTERRUPTED_BY = """
import sys
from importlib.abc import MetaPathFinder

class Interrupts(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from onward.cli.main import main
main()
"""


def test_a_command_that_is_interrupted_while_it_is_imported_ends_without_a_word() -> None:
    program = _INTERRUPTED_BY.format(module="onward.cli.status")

    ended = subprocess.run([sys.executable, "-c", program, "status"], capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("option", ["--grace", "--poll"])
@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300"])
def test_a_time_without_an_end_is_wrong_usage(option: str, seconds: str) -> None:
    assert CliRunner().invoke(cli, ["worker", "shop:app", option, seconds]).exit_code == 2
