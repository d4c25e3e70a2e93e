"""The entry point, which also works, and says what to install, where typer and rich are missing."""

import sys
from importlib.util import find_spec

_INTERRUPTED = 130
"""What a shell calls the end by SIGINT."""


def main() -> None:
    """Run the command in `sys.argv`."""
    missing = [name for name in ("typer", "rich") if find_spec(name) is None]
    if missing:
        print(f"onward: the command line needs {' and '.join(missing)}: pip install 'onward[cli]'", file=sys.stderr)
        sys.exit(2)
    try:
        from onward.cli.commands import cli

        cli(prog_name="onward")
    except KeyboardInterrupt:  # while the commands were imported: later the library sees to it
        sys.exit(_INTERRUPTED)
