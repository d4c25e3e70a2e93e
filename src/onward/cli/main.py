"""The entry point, which also works, and says what to install, where typer and rich are missing."""

import io
import os
import sys
from importlib.util import find_spec

_INTERRUPTED = 130
"""What a shell calls the end by SIGINT."""


def main() -> None:
    """Run the command in `sys.argv`."""
    _stand_in_for_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # not every encoding has every letter
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        print(f"onward: the command line needs {' and '.join(missing)}: pip install 'onward[cli]'", file=sys.stderr)
        sys.exit(2)
    try:
        from onward.cli.commands import cli

        cli(prog_name="onward")
    except KeyboardInterrupt:  # while the commands were imported: later the library sees to it
        sys.exit(_INTERRUPTED)


def _stand_in_for_closed_streams() -> None:
    """Else a socket is given the number of one, and gets what is written to it; uvloop ends the process then."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, "w" if number else "r"))  # noqa: SIM115 - as long as the process lives
