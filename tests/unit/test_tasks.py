"""Every task has an owner: a task group, or `Errands`, whose owner waits for it when it closes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import onward

SOURCE = Path(onward.__file__).parent
OWNER = SOURCE / "errands.py"


def test_no_task_is_made_without_an_owner() -> None:
    files = [path for path in sorted(SOURCE.rglob("*.py")) if path != OWNER]

    assert [f"{path.relative_to(SOURCE)}: {where}" for path in files for where in unowned(path.read_text())] == []


def test_a_task_without_an_owner_is_found() -> None:
    owned = "async def f(tasks: asyncio.TaskGroup):\n    tasks.create_task(g())"

    assert list(unowned(owned)) == []
    for way in ("asyncio.create_task", "asyncio.get_running_loop().create_task", "self._loop.create_task"):
        assert list(unowned(f"{owned}\n    {way}(g())")) == [f"line 3: {way}"]


def unowned(source: str) -> Iterator[str]:
    """Where tasks are made by other means than a task group."""
    tree = ast.parse(source)
    groups = set(of_task_groups(tree))
    for node in ast.walk(tree):
        makes_task = isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future", "gather")
        if makes_task and bare(node.value) not in groups:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def of_task_groups(tree: ast.AST) -> Iterator[str]:
    """What task groups are called: `async with asyncio.TaskGroup() as tasks`, or `tasks: asyncio.TaskGroup`."""
    for node in ast.walk(tree):
        match node:
            case ast.withitem(context_expr=made, optional_vars=ast.expr() as name) if is_task_group(made):
                yield bare(name)
            case ast.arg(arg=argument, annotation=ast.expr() as kind) if is_task_group(kind):
                yield argument
            case ast.AnnAssign(target=name, annotation=kind) if is_task_group(kind):
                yield bare(name)
            case ast.Assign(targets=[name], value=made) if is_task_group(made):
                yield bare(name)
            case _:
                pass


def is_task_group(node: ast.expr) -> bool:
    return "TaskGroup" in ast.unparse(node)


def bare(node: ast.expr) -> str:
    """`tasks` for `self._tasks`: what was handed over keeps its name."""
    return ast.unparse(node).removeprefix("self.").lstrip("_")
