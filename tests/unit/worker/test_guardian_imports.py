"""The guardian's child is a small process: it is there for every worker, and must come up at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import onward

PROGRAM = """
import json, runpy, sys
runpy.run_path(sys.argv[1])["stand_in_for_packages"]()
from onward.worker.guardian.child import program
program.lease_keeper_for(sys.argv[2], {"path": "", "pragmas": []}, {})
print(json.dumps([name for name in sys.modules if getattr(sys.modules[name], "__file__", None)]))
"""


@pytest.mark.parametrize(
    ("client", "database"), [("asyncpg", "postgres"), ("psycopg", "postgres"), ("sqlite3", "sqlite")]
)
def test_the_child_imports_little_of_onward_and_no_package_before_it_connects(client: str, database: str) -> None:
    child = Path(onward.__file__).parent / "worker/guardian/child/__main__.py"

    run = subprocess.run([sys.executable, "-c", PROGRAM, child, client], capture_output=True, check=True)

    imported = set(json.loads(run.stdout))
    assert {name for name in imported if name.startswith("onward")} - {"onward.transport"} == {
        "onward.pacing",
        "onward.state",
        f"onward.state.{database}",
        f"onward.state.{database}.lease_keeper",
        "onward.state.lease_keeper",
        "onward.state.lease_keepers",
        "onward.worker.guardian.child.parent",
        "onward.worker.guardian.child.program",
        "onward.worker.guardian.table",
    }
    assert not imported & {"msgspec", "asyncpg", "psycopg", "typing_extensions"}
