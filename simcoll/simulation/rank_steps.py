"""The steps of one rank of a scenario: a plain list with loops unrolled and overrides and faults applied.

Every backend plays the same list. A fault only rewrites it: a skipped call is removed, a crash replaces the call and
ends the list.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from simcoll.simulation.operations import keys_of
from simcoll.simulation.scenario import WORLD, CallPlan, Fault, GroupPlan, Loop, Scenario, ScenarioStep

MAX_STEPS = 100_000
"""The most steps of one rank."""

MAX_ALL_STEPS = 4_000_000
"""The most steps of all ranks together."""

_MAX_REWRITTEN = 20_000_000
"""The most steps that faults may rewrite."""

Steps: TypeAlias = "list[ScenarioStep]"


def check_steps(scenario: Scenario) -> None:
    """Compute every rank's steps; raises ScenarioError where they cannot be played.

    There are too many, a fault matches no call, or the rank uses a group that it has not created.
    """
    total = rewritten = 0
    for rank in range(scenario.ranks):
        part = steps_of(scenario, rank)
        _check_groups(scenario, rank, part)
        total += len(part)
        rewritten += len(part) * sum(rank in fault.ranks for fault in scenario.faults)
        if rewritten > _MAX_REWRITTEN:
            raise scenario.error(scenario.faults[0].line, "too many faults on too many calls; state fewer of either")
        if total > MAX_ALL_STEPS:
            raise scenario.error(1, f"the ranks make more than {MAX_ALL_STEPS:,} calls together; repeat less")


def _check_groups(scenario: Scenario, rank: int, part: Steps) -> None:
    made = {WORLD}
    for step in part:
        if step.op == "new_group":
            made.add(step.group)
        elif step.group not in made:
            raise scenario.error(step.line, f"{step.op}: rank {rank} uses group {step.group!r} before it has made it")


def steps_of(scenario: Scenario, rank: int) -> Steps:
    """All steps of a rank (global); raises ScenarioError."""
    steps = list(_groups(scenario, rank))
    begins = len(steps)
    for step in _unrolled(scenario, scenario.calls, rank):
        steps.append(step)
        if len(steps) > MAX_STEPS:
            raise scenario.error(step.line, f"rank {rank} makes more than {MAX_STEPS:,} calls; repeat less")
    calls = steps[begins:]
    for fault in scenario.faults:
        if rank in fault.ranks:
            calls = _faulty(scenario, fault, rank, calls)
    return steps[:begins] + calls


def _groups(scenario: Scenario, rank: int) -> Iterator[ScenarioStep]:
    """The groups that are created at the start: those that no call creates later."""
    later = {plan.step.group for plan in _plans(scenario.calls) if plan.step.op == "new_group"}
    for group in scenario.groups:
        if group.name not in later and _makes(group, rank):
            yield ScenarioStep("new_group", group.line, name=group.name, group=group.name)


def _makes(group: GroupPlan, rank: int) -> bool:
    return group.made_by is None or rank in group.made_by


def _plans(calls: Sequence[CallPlan | Loop]) -> Iterator[CallPlan]:
    for each in calls:
        if isinstance(each, Loop):
            yield from _plans(each.calls)
        else:
            yield each


def _unrolled(scenario: Scenario, calls: Sequence[CallPlan | Loop], rank: int) -> Iterator[ScenarioStep]:
    for each in calls:
        if isinstance(each, CallPlan):
            if (step := _step(scenario, each, rank)) is not None:
                yield step
        elif each.ranks is None or rank in each.ranks:
            body = list(_unrolled(scenario, each.calls, rank))
            for _ in range(each.repeat if body else 0):
                yield from body


def _step(scenario: Scenario, plan: CallPlan, rank: int) -> ScenarioStep | None:
    """The step as this rank makes it; None where it does not."""
    step = plan.step
    for override in plan.overrides:
        if rank in override.ranks:
            step = replace(step, **override.fields)
    if plan.ranks is not None:
        return step if rank in plan.ranks else None
    group = scenario.group(plan.step.group)
    if group is not None and not _makes(group, rank):
        return None
    return step if step.op == "new_group" or rank in scenario.members(step.group, rank) else None


Rewrite: TypeAlias = Callable[[Fault, Steps, "list[int]"], Steps]
"""Fault, steps, indices of the steps that it concerns -> the rewritten steps."""


def _faulty(scenario: Scenario, fault: Fault, rank: int, steps: Steps) -> Steps:
    places = _places(fault, steps)
    if not places and fault.kind != "slow-rank":
        raise scenario.error(fault.line, f"{fault.kind}: {_no_place(fault, rank, steps)}")
    for place in places if fault.kind not in REWRITES else ():
        if unfit := _unfit(fault, steps[place]):
            raise scenario.error(fault.line, f"{fault.kind}: {steps[place].op} has no {unfit}")
    return REWRITES.get(fault.kind, _changed)(fault, steps, places)


def _unfit(fault: Fault, step: ScenarioStep) -> str:
    """The first key that the fault changes and the call does not have."""
    takes = keys_of(step.op)
    names = ("shape" if name == "shapes" else name for name in fault.fields)
    return next((name for name in names if name not in takes), "")


def _places(fault: Fault, steps: Steps) -> list[int]:
    if fault.at:
        return [fault.at - 1] if fault.at <= len(steps) else []
    found = [place for place, step in enumerate(steps) if not fault.call or fault.call in (step.name, step.op)]
    return found[fault.iteration - 1 : fault.iteration] if fault.iteration else found


def _no_place(fault: Fault, rank: int, steps: Steps) -> str:
    if fault.at:
        return f"rank {rank} makes {len(steps)} calls, none is number {fault.at}"
    made = [step for step in steps if fault.call in (step.name, step.op)]
    if made:
        return f"rank {rank} makes the call {fault.call!r} {len(made)} times, iteration is {fault.iteration}"
    names = sorted({name for step in steps for name in (step.name, step.op) if name})
    close = difflib.get_close_matches(fault.call, names, n=1)
    advice = f"did you mean {close[0]!r}?" if close else f"it makes {', '.join(names[:8]) or 'none'}"
    return f"rank {rank} never makes the call {fault.call!r}; {advice}"


def _ended(fault: Fault, steps: Steps, places: list[int]) -> Steps:
    """The rank ends, or hangs, in place of the call."""
    first = places[0]
    return [*steps[:first], ScenarioStep(fault.kind, fault.line, name=steps[first].name, **fault.fields)]


def _skipped(fault: Fault, steps: Steps, places: list[int]) -> Steps:
    left_out = set(places)
    return [step for place, step in enumerate(steps) if place not in left_out]


def _extra(fault: Fault, steps: Steps, places: list[int]) -> Steps:
    doubled = set(places)
    return [step for place, step in enumerate(steps) for _ in range(2 if place in doubled else 1)]


def _swapped(fault: Fault, steps: Steps, places: list[int]) -> Steps:
    steps, place = list(steps), -1
    for first in places:
        # A call that has just been moved back stays there.
        if first > place and first + 1 < len(steps):
            place = first + 1
            steps[first], steps[place] = steps[place], steps[first]
    return steps


def _slowed(fault: Fault, steps: Steps, places: list[int]) -> Steps:
    slow, seconds = set(places), float(str(fault.fields["seconds"]))
    pause = ScenarioStep("compute", fault.line, seconds=seconds)
    return [each for place, step in enumerate(steps) for each in ([pause, step] if place in slow else [step])]


def _spoilt(fault: Fault, steps: Steps, places: list[int]) -> Steps:
    """The steps, in which the data that the call sends, or its result, is spoilt."""
    wrong, spoils = set(places), "inputs" if fault.kind == "nan-input" else "outputs"
    return [replace(step, spoils=spoils) if place in wrong else step for place, step in enumerate(steps)]


def _changed(fault: Fault, steps: Steps, places: list[int]) -> Steps:
    """The steps, in which the call has other values."""
    wrong = set(places)
    return [replace(step, **fault.fields) if place in wrong else step for place, step in enumerate(steps)]


REWRITES: Mapping[str, Rewrite] = MappingProxyType(
    {
        "crash": _ended,
        "exit": _ended,
        "hang": _ended,
        "skip": _skipped,
        "extra": _extra,
        "swap": _swapped,
        "nan-input": _spoilt,
        "bad-result": _spoilt,
        "slow-rank": _slowed,
    }
)
"""The function by which each kind of fault rewrites a rank's steps; the other kinds change the values of a step."""
