"""What `make house` counts."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HOUSE: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "tools/house.py"))

Furnish = Callable[[dict[str, str]], Path]


@pytest.fixture
def furnish(tmp_path: Path) -> Furnish:
    """Writes files into a package of this name, and says where it is."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "onward" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "onward"

    return write


def test_lines_are_those_of_the_house_and_not_of_what_stands_beside_it(furnish: Furnish) -> None:
    source = furnish(
        {
            "model.py": '"""What is stored."""\n\n# why\nONE = 1\n',
            "cli/commands.py": "ONE = 1\n",
            "cli/demo/app.py": "ONE = 1\n",
            "cli/bench/program.py": "ONE = 1\n",
            "conformance/state/suite.py": "ONE = 1\n",
        }
    )

    assert HOUSE["lines"](source) == 5


def test_a_statement_spells_completed_where_it_says_who_completed_the_job(furnish: Furnish) -> None:
    source = furnish(
        {
            "state/postgres/sql/settle.sql": "UPDATE job SET status = 'completed',\n  completed_by = :holder",
            "state/postgres/sql/row.sql": "UPDATE job SET (status, completed_by) = ('completed', :holder)",
            "state/postgres/sql/retry.sql": "UPDATE job SET status = 'pending', completed_by = NULL",
            "state/postgres/sql/find.sql": "SELECT status, completed_by FROM job WHERE status = 'completed'",
            "state/sqlite/sql/settle.sql": "UPDATE job SET completed_by = :holder",
        }
    )

    assert HOUSE["completed"](source) == ["state/postgres/sql/row.sql:1", "state/postgres/sql/settle.sql:2"]


def test_a_task_of_the_loop_is_unowned_and_one_of_a_group_is_not(furnish: Furnish) -> None:
    source = furnish(
        {
            "bad.py": "asyncio.get_running_loop().create_task(one())\nself._loop.create_task(two())\n"
            "asyncio.gather(one(), two())\nasyncio.create_task(one())\n",
            "good.py": "tasks.create_task(one())\nself._tasks.create_task(two())\n",
            "errands.py": "asyncio.get_running_loop().create_task(one())\n",
        }
    )

    assert HOUSE["unowned_tasks"](source) == ["bad.py:1", "bad.py:2", "bad.py:3", "bad.py:4"]


def test_rooms_know_each_other_both_ways_however_they_import(furnish: Furnish) -> None:
    source = furnish(
        {
            "__init__.py": "from onward.client.app import Onward\n",
            "client/app.py": "from onward import errors\nfrom onward.worker.worker import Worker\n",
            "worker/worker.py": "def work():\n    import onward.client.app\n",
            "errors.py": "if TYPE_CHECKING:\n    from onward.client.app import Onward\n",
        }
    )

    assert HOUSE["both_ways"](source) == ["client ⇄ worker"]


def test_a_walk_counts_functions_and_files() -> None:
    walk = HOUSE["Walk"]()
    walk.calls.update(["a.py:one", "a.py:one", "a.py:two", "b/c.py:three"])

    assert str(walk) == "3 / 2"


def test_what_cannot_be_counted_says_why() -> None:
    def fail() -> int:
        raise OSError("no such place")

    assert HOUSE["counted"](fail, "lines", "0").now == "OSError: no such place"
