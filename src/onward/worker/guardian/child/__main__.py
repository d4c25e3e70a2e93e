"""Run by its path. `import onward` would load all of it, so empty packages stand in for those on the way here."""

import sys
import types
from pathlib import Path


def stand_in_for_packages() -> None:
    """Make modules of this package importable without running the `__init__.py` of `onward`."""
    name, folder = "onward.worker.guardian.child", Path(__file__).parent
    while name:
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
        name, folder = name.rpartition(".")[0], folder.parent


if __name__ == "__main__":
    stand_in_for_packages()
    from onward.worker.guardian.child.program import main

    main()
