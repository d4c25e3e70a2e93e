"""What the README, the docs and the examples say, run: every Python block, every link, every name they should know."""

import ast
import asyncio
import contextlib
import importlib.util
import inspect
import io
import itertools
import re
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

import onward
from onward.cli.commands import cli
from onward.define.job_type import TypeOptions
from onward.define.request import StartOptions
from onward.observe.events import Event
from onward.worker.options import WorkerOptions

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?P<target>[^)#:]+)(?:#[^)]*)?\)")
PRINTED = re.compile(r"^\s*print\(.*\)  # (?P<line>.*)$", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Reader:
    """Runs the blocks of one page, one after another, in one module, as somebody at a prompt would."""

    def __init__(self, page: Path) -> None:
        # A module of its own: annotations of the page's classes and handlers are looked up there.
        self._module = types.ModuleType(f"page_{page.stem.replace('-', '_').lower()}")
        sys.modules[self._module.__name__] = self._module
        text = page.read_text()
        self._blocks = [(text[: found.start()].count("\n") + 2, found["code"]) for found in BLOCK.finditer(text)]
        self._page = page

    def run(self) -> int:
        """The number of blocks run."""
        with asyncio.Runner() as runner:
            for line, code in self._blocks:
                output = io.StringIO()
                with contextlib.redirect_stdout(output):
                    self._run_block(runner, line, code)
                expected = [found["line"] for found in PRINTED.finditer(code)] or _printed_at_the_end(code)
                assert not expected or output.getvalue().splitlines() == expected, f"{self._page}, line {line}"
        return len(self._blocks)

    def _run_block(self, runner: asyncio.Runner, line: int, code: str) -> None:
        tree = ast.increment_lineno(ast.parse(code), line - 1)
        compiled = compile(tree, str(self._page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if compiled.co_flags & inspect.CO_COROUTINE:
            runner.run(eval(compiled, vars(self._module)))
        else:
            exec(compiled, vars(self._module))


def _printed_at_the_end(code: str) -> list[str]:
    lines = list(itertools.takewhile(lambda line: line.startswith("# "), reversed(code.splitlines())))
    return [line.removeprefix("# ") for line in reversed(lines)]


@pytest.fixture
def give_addresses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Sets the variables that a page or an example reads to servers that are there."""

    def give(path: Path) -> None:
        for variable in ("DATABASE_URL", "REDIS_URL", "RABBITMQ_URL", "NATS_URL"):
            if variable in path.read_text():
                monkeypatch.setenv(variable, request.getfixturevalue(variable.lower()))

    return give


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_python_block_runs(
    page: Path,
    give_addresses: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give_addresses(page)
    monkeypatch.chdir(tmp_path)

    assert Reader(page).run() == page.read_text().count("```python")


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_every_example_runs(example: Path, give_addresses: Callable[[Path], None], tmp_path: Path) -> None:
    give_addresses(example)
    run = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )

    assert run.returncode == 0, run.stdout + run.stderr
    expected = ast.get_docstring(ast.parse(example.read_text())) or ""
    assert "It prints:" in expected
    assert run.stdout.split() == expected.partition("It prints:")[2].split()


def test_the_readme_opens_with_an_example_of_twelve_lines_that_runs_as_it_stands(tmp_path: Path) -> None:
    found = BLOCK.search((ROOT / "README.md").read_text())
    assert found is not None
    (tmp_path / "first.py").write_text(found["code"])

    run = subprocess.run([sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    assert run.stdout == "hello world\n"
    assert len([line for line in found["code"].splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    targets = [found["target"] for found in LINK.finditer(page.read_text())]

    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_reference_knows_every_public_name() -> None:
    text = "".join(page.read_text() for page in sorted((ROOT / "docs/reference").glob("*.md")))
    errors = [
        name
        for name, found in vars(onward.errors).items()
        if isinstance(found, type) and issubclass(found, onward.OnwardError)
    ]

    assert len(errors) > 50
    assert [name for name in [*onward.__all__, *errors] if not re.search(rf"`{name}\b", text)] == []


def test_the_reference_knows_every_event() -> None:
    text = (ROOT / "docs/reference/events.md").read_text()

    assert [kind.__name__ for kind in typing.get_args(Event) if f"`{kind.__name__}`" not in text] == []


def test_the_reference_knows_every_option_of_the_command() -> None:
    text = (ROOT / "docs/reference/cli.md").read_text()
    options = [option for command in _commands(typer.main.get_command(cli)) for option in command.params]
    words = {word for option in options if not getattr(option, "hidden", False) for word in _words(option)}

    assert {"--concurrency", "ONWARD_CONCURRENCY"} <= words
    assert [word for word in sorted(words) if f"`{word}`" not in text] == []


def _commands(group: typing.Any) -> Iterator[typing.Any]:
    for command in group.commands.values():
        yield from _commands(command) if hasattr(command, "commands") else [command]


def _words(option: typing.Any) -> list[str]:
    flags = [word for word in option.opts if word.startswith("--") and word != "--help"]
    return [*flags, option.envvar] if option.envvar else flags


def test_the_reference_knows_every_option_of_the_library() -> None:
    text = (ROOT / "docs/reference/options.md").read_text()
    functions = (onward.Onward, onward.Onward.worker, WorkerOptions, onward.Onward.start, onward.JobType, onward.Slice)
    names = {name for function in functions for name in inspect.signature(function).parameters}
    names = names - {"self", "job_type", "options"} | {*TypeOptions.__annotations__, *StartOptions.__annotations__}

    assert {"target", "concurrency", "delay", "continues_to", "prefix"} <= names
    assert [name for name in sorted(names) if f"`{name}" not in text] == []


def test_examples_are_found() -> None:
    assert importlib.util.find_spec("onward.cli.demo.app") is not None
    assert len(EXAMPLES) >= 2
