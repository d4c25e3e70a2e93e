"""`onward graph`: the declared chains as a picture."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from onward.cli.console import set_up_logging
from onward.cli.failures import in_words
from onward.cli.loading import load_app
from onward.cli.options import App, AppDir, Debug, Json, Prefix, Schema, option
from onward.cli.place import of_app, run
from onward.cli.printing import print_json, print_line
from onward.client.app import Onward
from onward.client.declared import continuations, waits
from onward.define.registry import Registry
from onward.state.contract import JobCounts

Counts = Mapping[str, JobCounts]


def graph(
    app: App,
    format: Annotated[Literal["mermaid", "dot"], option("--format", "For Mermaid, or for Graphviz (dot).")] = "mermaid",
    database: Annotated[
        str | None, option("--database", "Count what waits, runs and failed there.", metavar="URL")
    ] = None,
    counts: Annotated[bool, option("--counts", "Count in the app's own database.")] = False,
    schema: Schema = None,
    prefix: Prefix = None,
    json: Json = False,
    app_dir: AppDir = None,
    debug: Debug = False,
) -> None:
    """Draw the job types of an app: what continues to what, and what waits for what."""
    set_up_logging("warning")
    with in_words(debug=debug):
        found = load_app(app)
        stored = of_app(found, database, schema=schema, prefix=prefix)
        counted: Counts = {}
        if database is not None or counts:
            names = list(found.registry)

            async def count(opened: Onward) -> Counts:
                return await opened.store.read(opened.state.count_jobs(names))

            counted = run(stored, count)
    if json:
        print_json(as_data(found.registry, counted))
    else:
        for line in (mermaid if format == "mermaid" else dot)(found.registry, counted):
            print_line(line)


def as_data(registry: Registry, counts: Counts) -> dict[str, Any]:
    """Types and what leads from one to another."""
    types = [
        {"type": name, "internal": kind.definition.internal, "version": kind.definition.version}
        | ({"counts": counts.get(name, JobCounts())} if counts else {})
        for name, kind in registry.items()
    ]
    return {
        "types": types,
        "continues": [{"from": one, "to": other} for one, other in continuations(registry)],
        "waits": [{"type": one, "for": other} for one, other in waits(registry)],
    }


def mermaid(registry: Registry, counts: Counts) -> list[str]:
    """As a flowchart: round where chains begin; a dotted line leads from a chain to what waits for it."""
    number = {name: f"t{n}" for n, name in enumerate(registry)}
    lines = ["flowchart LR"]
    for name, kind in registry.items():
        begin, end = ("[", "]") if kind.definition.internal else ("([", "])")
        label = "<br/>".join(re.sub(r'["<>&#]', _entity, part) for part in _label(name, counts))
        lines.append(f'  {number[name]}{begin}"{label}"{end}')
    lines += [f"  {number[one]} --> {number[other]}" for one, other in continuations(registry)]
    lines += [f"  {number[other]} -.-> {number[one]}" for one, other in waits(registry)]
    return lines


def dot(registry: Registry, counts: Counts) -> list[str]:
    """The same for Graphviz."""
    lines = ["digraph onward {", "  rankdir=LR;", "  node [shape=box];"]
    for name, kind in registry.items():
        label = r"\n".join(map(_escaped, _label(name, counts)))
        rounded = "" if kind.definition.internal else ", style=rounded"
        lines.append(f'  "{_escaped(name)}" [label="{label}"{rounded}];')
    lines += [f'  "{_escaped(one)}" -> "{_escaped(other)}";' for one, other in continuations(registry)]
    lines += [f'  "{_escaped(other)}" -> "{_escaped(one)}" [style=dashed];' for one, other in waits(registry)]
    return [*lines, "}"]


def _label(name: str, counts: Counts) -> Sequence[str]:
    on_one_line = " ".join(name.split())
    if not counts:
        return (on_one_line,)
    found = counts.get(name, JobCounts())
    figures = (
        ("pending", found.pending),
        ("scheduled", found.scheduled),
        ("running", found.running),
        ("failed", found.failed),
    )
    return on_one_line, ", ".join(f"{count:,} {word}" for word, count in figures if count) or "nothing waits"


def _entity(match: re.Match[str]) -> str:
    return f"#{ord(match[0])};"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
