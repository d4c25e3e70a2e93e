"""The house in numbers: how much there is to read, and how far one has to walk. `make house`; -v says where.

Most is counted from the source. The walks are made: one start in a transaction, and one start with its attempt, on
Postgres (where the tests find it), counting the functions of ours that are called on the way.
"""

import ast
import asyncio
import logging
import os
import re
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "onward"
NOT_THE_HOUSE = ("conformance", "cli/demo", "cli/bench")
# How a column list says that a job has completed: somebody, not NULL, completed it.
COMPLETED = re.compile(
    r"\bcompleted_by\s*=(?!\s*NULL\b)"
    r"|\([^()]*\bcompleted_by\b[^()]*\)\s*=\s*(?:ROW\s*)?\(",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str
    now: str
    wanted: str
    where: list[str] = field(default_factory=list)


def python_files(source: Path) -> list[Path]:
    """Those of the house itself: suites for adapters, the demo and the benchmark are beside it."""
    beside = tuple(f"{place}/" for place in NOT_THE_HOUSE)
    return [path for path in sorted(source.rglob("*.py")) if not path.relative_to(source).as_posix().startswith(beside)]


def lines(source: Path) -> int:
    """As an editor shows them, comments and empty ones too."""
    return sum(len(path.read_text().splitlines()) for path in python_files(source))


def completed(source: Path) -> list[str]:
    """Where a statement for Postgres spells out what becomes of the columns of a job that completes."""
    paths = [path for path in sorted((source / "state/postgres").rglob("*")) if path.suffix in {".sql", ".py"}]
    return [
        f"{path.relative_to(source)}:{text.count(chr(10), 0, found.start()) + 1}"
        for path in paths
        for text in [path.read_text()]
        for found in COMPLETED.finditer(text)
    ]


def unowned_tasks(source: Path) -> list[str]:
    """Tasks of the event loop's own, which nobody ends: all but those of a task group. errands.py sees to its own."""
    return [
        f"{path.relative_to(source)}:{call.lineno}"
        for path in python_files(source)
        if path.name != "errands.py"
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and _is_unowned(call.func)
    ]


def _is_unowned(called: ast.expr) -> bool:
    if not isinstance(called, ast.Attribute):
        return False
    owner = ast.unparse(called.value)
    if called.attr in {"ensure_future", "gather"}:
        return owner == "asyncio"
    return called.attr == "create_task" and (owner == "asyncio" or owner.endswith(("loop", "loop()")))


def both_ways(source: Path) -> list[str]:
    """Pairs of rooms, the packages and modules at the top, that import each other. What only types need counts not."""
    imports = {
        (path.relative_to(source).parts[0].removesuffix(".py"), room)
        for path in sorted(source.rglob("*.py"))
        if path.relative_to(source).as_posix() != "__init__.py"  # the front door knows everybody
        for room in _rooms(ast.parse(path.read_text()), source.name)
    }
    return sorted(f"{one} ⇄ {other}" for one, other in imports if one < other and (other, one) in imports)


def _rooms(tree: ast.AST, package: str) -> Iterator[str]:
    """The rooms that a module imports from."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{name.name}" for name in node.names]
        else:
            names = [name.name for name in node.names] if isinstance(node, ast.Import) else []
        for parts in (name.split(".") for name in names):
            if parts[0] == package and len(parts) > 1:
                yield parts[1]
        yield from _rooms(node, package)


def layer_breaks() -> str:
    """Contracts of pyproject.toml that imports break, as import-linter says."""
    program = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run(
        [program, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, env=_with_source()
    )
    found = re.search(r"(\d+) broken", run.stdout)
    return found[1] if found else "import-linter failed"


def _with_source() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@dataclass
class Walk:
    """The functions of ours that were called on the way."""

    calls: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return f"{len(self.calls)} / {len({name.partition(':')[0] for name in self.calls})}"

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Counts what this thread calls within the block."""

        def profile(frame: FrameType, event: str, argument: object) -> None:
            name = frame.f_code.co_filename
            if event == "call" and name.startswith(home):
                self.calls[f"{name.removeprefix(home)}:{frame.f_code.co_qualname}"] += 1

        home = f"{SOURCE}{os.sep}"
        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)


async def walks(dsn: str) -> tuple[Walk, Walk]:
    """Of a start in a transaction, commit and hint included; of a start, its take, its run and its settlement."""
    from onward import Attempt, Onward, job

    @job("walk")
    async def walk(attempt: Attempt[int]) -> int:
        async with attempt.complete() as tx:
            await tx.execute("SELECT 1")
            return 1

    started, worked = Walk(), Walk()
    schema = f"house_{secrets.token_hex(4)}"
    app = Onward(dsn, jobs=[walk], schema=schema, migrate=True)
    async with app:
        try:
            for traced in (Walk(), Walk(), Walk(), started):  # the first ones open connections and fill caches
                await asyncio.sleep(0.1)
                with traced.traced():
                    async with app.transaction() as tx:
                        await app.start(walk, 1, tx=tx)
                    await asyncio.sleep(0.1)
            await app.start(walk, 1)
            async with app.worker(grace=timedelta(seconds=1)):
                await asyncio.sleep(1)
                with worked.traced():
                    await app.start(walk, 1)
                    await asyncio.sleep(0.3)
        finally:
            async with app.transaction() as tx:
                await tx.execute(f"DROP SCHEMA {schema} CASCADE")
    return started, worked


def walked() -> tuple[Walk, Walk] | str:
    """The walks; or why there are none."""
    sys.path.insert(0, str(ROOT / "tests"))
    import servers

    place = servers.POSTGRES
    there = os.environ.get(place.variable) or (place.default and place.answers(place.default))
    if not there and servers.installed(place) is None:
        return "no Postgres here"
    logging.disable(logging.CRITICAL)
    with servers.postgres() as dsn:
        return asyncio.run(walks(dsn))


def counted(count: Callable[[], list[str] | int | str], what: str, wanted: str) -> Row:
    """A row. What cannot be counted says why: this table reports, it does not judge."""
    try:
        found = count()
    except Exception as error:  # noqa: BLE001 - it is shown
        return Row(what=what, now=f"{type(error).__name__}: {error}".splitlines()[0], wanted=wanted)
    if isinstance(found, list):
        return Row(what=what, now=str(len(found)), wanted=wanted, where=found)
    return Row(what=what, now=f"{found:,}" if isinstance(found, int) else found, wanted=wanted)


def table() -> Iterator[Row]:
    """All rows."""
    yield counted(lambda: lines(SOURCE), "lines of Python, without conformance suites, demo and bench", "≤ 23,000")
    yield from _walk_rows()
    yield counted(lambda: completed(SOURCE), 'statements that spell "completed" on Postgres', "1")
    yield counted(lambda: unowned_tasks(SOURCE), "unowned tasks", "0")
    yield counted(layer_breaks, "layer breaks", "0")
    yield counted(lambda: both_ways(SOURCE), "rooms that know each other both ways", "0")
    yield counted(_public_names, "public names in onward", "≤ 60")


def _walk_rows() -> Iterator[Row]:
    titles = [("start(tx=) to commit and hint", "≤ 50 / 15"), ("start, take, run, settle", "≤ 110 / 26")]
    try:
        found = walked()
    except Exception as error:  # noqa: BLE001 - it is shown
        found = f"{type(error).__name__}: {error}".splitlines()[0]
    for number, (title, wanted) in enumerate(titles):
        walk = found if isinstance(found, str) else found[number]
        where = [] if isinstance(walk, str) else [f"{count:4} {name}" for name, count in walk.calls.most_common()]
        yield Row(what=f"functions / files of {title}", now=str(walk), wanted=wanted, where=where)


def _public_names() -> int:
    import onward

    return len(onward.__all__)


def main() -> None:
    sys.path.insert(0, str(ROOT / "src"))
    rows = list(table())
    print(f"{'The house':62}{'now':>10}{'wanted':>14}")
    for row in rows:
        print(f"{row.what:62}{row.now:>10}{row.wanted:>14}")
        if "-v" in sys.argv:
            for place in row.where:
                print(f"      {place}")


if __name__ == "__main__":
    main()
