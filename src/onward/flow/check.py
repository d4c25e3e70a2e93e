"""Do the stages fit together? Asked once, before anything runs."""

from collections.abc import Iterable, Mapping
from typing import Any

from onward.define.codec import fields_of
from onward.errors import FlowDefinitionError, MissingAttribute
from onward.flow.attributes import problem_of, provided_by
from onward.flow.stage import Stage, members_of

Available = frozenset[str]


def check(flow: str, stages: Mapping[str, Stage], first: str, input: Any, indexed: Iterable[str]) -> None:
    """Raise a FlowDefinitionError with every problem, or a MissingAttribute with every attribute that is missing."""
    problems = [problem for stage in stages.values() for problem in _problems_of(stage, stages)]
    if first not in stages:
        problems.append(f"first={first!r} is no stage: there are {_names(stages)}")
    if (problem := problem_of(input)) is not None:
        problems.append(f"input: {problem}")
    if not problems:
        reached = _reached(stages, first)
        problems += [f"no stage leads to {name!r}, and it is not the first" for name in stages if name not in reached]
    if not problems:
        known = provided_by(input).union(*(_everything_from(stage) for stage in stages.values()))
        problems += [
            f"index={name!r}: no stage provides it, nor the input" for name in sorted(indexed) if name not in known
        ]
    if problems:
        raise FlowDefinitionError(flow, problems)
    _check_attributes(flow, stages, _available(stages, first, provided_by(input)))


def _problems_of(stage: Stage, stages: Mapping[str, Stage]) -> Iterable[str]:
    where, signature = f"stage {stage.name!r}", stage.signature
    for target in stage.leads_to:
        if target not in stages:
            yield f"{where} leads to {target!r}, which is no stage: there are {_names(stages)}"
    kinds = [signature.attributes, *members_of(signature.results), signature.goto, signature.children]
    for kind in (*kinds, signature.beside_children):
        if kind not in (None, type(None), Any) and (problem := problem_of(kind)) is not None:
            yield f"{where}: {problem}"
    if stage.children is None and signature.children is not None:
        yield f"{where} returns FanOut and does not say where children begin: children='…'"
    if stage.children is not None and signature.children is None:
        yield f"{where} has children={stage.children!r}, so its handler must be annotated -> FanOut[…]"
    if stage.collect is not None and stage.children is None:
        yield f"{where} has collect={stage.collect!r} and no children="


def _reached(stages: Mapping[str, Stage], first: str) -> set[str]:
    reached, todo = {first}, [first]
    while todo:
        for target in stages[todo.pop()].leads_to:
            if target not in reached:
                reached.add(target)
                todo.append(target)
    return reached


def _everything_from(stage: Stage) -> Available:
    kinds = [*members_of(stage.signature.results), stage.signature.goto, stage.signature.children]
    collected = {stage.collect} if stage.collect else set[str]()
    return frozenset(collected).union(*(provided_by(kind) for kind in (*kinds, stage.signature.beside_children)))


def _edges(stage: Stage) -> Iterable[tuple[str, Available, bool]]:
    """Where a job goes, what the stage is sure to have added by then, and whether a child begins there."""
    signature = stage.signature
    if stage.next is not None:
        ways = [provided_by(kind) for kind in members_of(signature.results)] if signature.returns_plainly else []
        if signature.children is not None:
            ways.append(provided_by(signature.beside_children) | ({stage.collect} if stage.collect else set()))
        yield stage.next, frozenset.intersection(*ways) if ways else frozenset(), False
    for target in stage.goto:
        yield target, provided_by(None if signature.goto is Any else signature.goto), False
    if stage.children is not None:
        yield stage.children, provided_by(signature.children), True


def _available(stages: Mapping[str, Stage], first: str, given: Available) -> dict[str, Available]:
    """For each stage the attributes that every job has when it enters, whichever way it came."""
    entering = {first: given}
    todo = [first]
    while todo:
        name = todo.pop()
        for target, added, begins in _edges(stages[name]):
            arriving = added if begins else entering[name] | added
            merged = arriving & entering[target] if target in entering else arriving
            if target not in entering or merged != entering[target]:
                entering[target] = merged
                todo.append(target)
    return entering


def _check_attributes(flow: str, stages: Mapping[str, Stage], available: Mapping[str, Available]) -> None:
    missing = [
        (stage.name, name)
        for stage in stages.values()
        for name in sorted(_asked_for(stage))
        if name not in available[stage.name]
    ]
    if missing:
        stage, attribute = missing[0]
        problems = [
            f"stage {stage!r} asks for {name!r}, and a job may get there without it: available are "
            f"{_names(sorted(available[stage]))}; let an earlier stage or the input provide it, or give it a default"
            for stage, name in missing
        ]
        raise MissingAttribute(flow, problems, stage=stage, attribute=attribute, available=sorted(available[stage]))


def _asked_for(stage: Stage) -> Available:
    _, required = fields_of(stage.signature.attributes) or (frozenset[str](), frozenset[str]())
    group = stage.rate.group if stage.rate is not None else None
    return required | {group} if group else required


def _names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
