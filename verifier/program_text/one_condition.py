"""Folds findings by the condition that parted their ranks: one cause gives one finding.

A condition that ranks do not decide alike sends them past calls in each round of a loop, on each line of its branch and
in each group. The finding on the first call inside of it stands for all of them; the others are counted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from simcoll.core.record import Source
from simcoll.core.units import counted
from simcoll.verifier.findings.describe import minority, source_text
from simcoll.verifier.findings.finding import Finding, Parting, Side
from simcoll.verifier.findings.rules import CALL_SKIPPED, ORDER_SWAPPED
from simcoll.verifier.program_text.forks import fork_of
from simcoll.verifier.program_text.syntax import Function, Loop, Step, nodes_within, steps_to
from simcoll.verifier.program_text.ways import function_of

_PRESENCE = (CALL_SKIPPED.code, ORDER_SWAPPED.code)
_SHOWN = 3
"""Other lines that are named."""


def one_per_condition(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, in their order, with one for each condition that parted ranks."""
    causes: list[_Cause] = []
    places: dict[int, _Cause] = {}
    # Those that only follow come last: the condition may be found at a later call of its group.
    for place, finding in sorted(enumerate(findings), key=lambda one: (one[1].parted is None, one[0])):
        cause = next((one for one in causes if one.explains(finding)), None)
        if cause is None and finding.parted is not None:
            cause = _Cause(finding.parted)
            causes.append(cause)
        if cause is not None:
            cause.findings[place] = finding
            cause.callers |= _callers(finding, cause.parted)
            places[place] = cause
    told = [places[place].told(place) if place in places else finding for place, finding in enumerate(findings)]
    return tuple(one for one in told if one is not None)


@dataclass(slots=True, eq=False)
class _Cause:
    """A condition, and the findings whose ranks it parted, by their places; ``callers`` are the ways to it."""

    parted: Parting
    findings: dict[int, Finding] = field(default_factory=dict)
    callers: set[tuple[tuple[str, int], ...]] = field(default_factory=set)

    def explains(self, finding: Finding) -> bool:
        """True for a finding whose ranks this condition parted."""
        if finding.parted is None:
            return any(_follows(finding, one, self.parted) for one in self.findings.values())
        if _line(finding.parted.source) != _line(self.parted.source):
            return False
        if self.parted.behind:
            # Values of several calls may depend on one comparison with the rank, each by a mistake of its own.
            return any(_lines(finding) == _lines(one) for one in self.findings.values())
        callers = _callers(finding, self.parted)
        alike = not callers or not self.callers or not callers.isdisjoint(self.callers)
        return alike or not _is_local(self.parted.source)

    def told(self, place: int) -> Finding | None:
        """The finding that stands for the cause, in the first place of its findings; None in the other places."""
        if place != min(self.findings):
            return None
        found = [self.findings[one] for one in sorted(self.findings)]
        parted = [one for one in found if one.parted is not None]
        first = next((one for one in parted if _is_inside(one)), parted[0])
        if len(found) == 1:
            return first
        ranks = tuple(sorted({rank for one in found for rank in one.ranks}))
        sides, others = _sides(parted), [one for one in found if one is not first]
        opened = first.message[:-1] + "; " if first.message.endswith(")") else f"{first.message} ("
        told = replace(first, message=f"{opened}{_counted(first, others)})", ranks=ranks)
        if sides is None:
            return told
        return replace(told, culprits=_blamed(found, [one for one, _ in sides]), parted=replace(self.parted, sides=sides))


def _line(source: Source) -> tuple[str, int]:
    return source.file, source.line


def _lines(finding: Finding) -> set[tuple[str, int]]:
    return {_line(one.source) for side in finding.sides for one in side.sources}


def _stacks(side: Side) -> Iterator[tuple[Source, ...]]:
    yield from (one.source.stack for one in side.sources)
    if side.stood.file:
        yield side.stood.stack


def _frames(stack: Sequence[Source], parted: Source) -> tuple[Source, ...]:
    """The frames of a stack, innermost first, from that of the condition's function on; empty if it is not in it."""
    places = [place for place, one in enumerate(stack) if (one.file, one.function) == (parted.file, parted.function)]
    return tuple(stack[places[0] :]) if places else ()


def _callers(finding: Finding, parted: Parting) -> set[tuple[tuple[str, int], ...]]:
    """The ways by which ranks came to the function of the condition."""
    stacks = (stack for side in finding.sides for stack in _stacks(side))
    frames = (_frames(stack, parted.source) for stack in stacks)
    return {tuple(_line(frame) for frame in one[1:]) for one in frames if one}


def _is_local(parted: Source) -> bool:
    """True if a condition depends on what its function was given or has computed, so that each call decides anew."""
    function = function_of(parted)
    if function is None or isinstance(function, ast.Module):
        return False
    tests = [test for node in nodes_within(function) if (test := _test(node, parted.line)) is not None]
    given = function.args
    own = {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg) if one}
    own -= {"self", "cls"}
    names = [node for node in nodes_within(function) if isinstance(node, ast.Name)]
    own |= {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    used = {node.id for test in tests for node in ast.walk(test) if isinstance(node, ast.Name)}
    return not tests or not used.isdisjoint(own)


def _test(node: ast.AST, line: int) -> ast.expr | None:
    """What a statement of this line asks."""
    if isinstance(node, ast.If | ast.While | ast.IfExp) and node.lineno == line:
        return node.test
    return node.iter if isinstance(node, ast.For | ast.AsyncFor) and node.lineno == line else None


def _is_inside(finding: Finding) -> bool:
    """True if the call that some ranks lack stands in the branch by which they parted."""
    makers = [side for side in finding.sides if side.call is not None]
    if finding.parted is None or len(makers) != 1 or len(finding.sides) != 2:
        return False
    steps = [_steps(frames[0]) for stack in _stacks(makers[0]) if (frames := _frames(stack, finding.parted.source))]
    forks = [fork_of(step) for one in steps for step in one]
    return any(fork is not None and fork.line == finding.parted.source.line for fork in forks)


def _steps(frame: Source) -> list[Step]:
    function = function_of(frame)
    return [] if function is None else steps_to(function, frame.line)


def _follows(finding: Finding, first: Finding, parted: Parting) -> bool:
    """True for calls that each round of a loop makes, where ranks had parted in it before: nobody skips these alone.

    Once ranks have parted, the calls of later rounds are paired by what they look like.
    """
    if finding.code not in _PRESENCE or finding.group != first.group or first.sequence is None:
        return False
    stacks = [stack for side in finding.sides for stack in _stacks(side)]
    around = [step.parent for step in _steps(parted.source) if isinstance(step.parent, Loop)]
    return bool(stacks) and bool(around) and all(_each_round(stack, parted.source, around[-1]) for stack in stacks)


def _each_round(stack: Sequence[Source], parted: Source, loop: ast.AST) -> bool:
    """True for a call below no condition inside of this loop but the one that parted ranks."""
    frames = _frames(stack, parted)
    if not frames:
        return False
    steps = _steps(frames[0])
    places = [place for place, step in enumerate(steps) if step.parent is loop]
    inner = [_steps(frame) for frame in stack[: len(stack) - len(frames)]]
    below = [*steps[places[0] + 1 :], *(step for one in inner for step in one)] if places else []
    forks = [fork for step in below if (fork := fork_of(step)) is not None]
    return bool(places) and all(inner) and all(fork.line == parted.line for fork in forks)


def _sides(findings: Sequence[Finding]) -> tuple[tuple[tuple[int, ...], str], ...] | None:
    """What the ranks of all findings did at the condition; None if one did both, at different times."""
    did: dict[str, set[int]] = {}
    for one in findings:
        for ranks, words in () if one.parted is None else one.parted.sides:
            did.setdefault(words, set()).update(ranks)
    all_ranks = [rank for ranks in did.values() for rank in ranks]
    if len(set(all_ranks)) < len(all_ranks):
        return None
    return tuple((tuple(sorted(ranks)), words) for words, ranks in did.items())


def _blamed(findings: Sequence[Finding], sides: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The culprits of all findings if they did alike at the condition, or else those who did what fewer did."""
    named = tuple(sorted({rank for one in findings for rank in one.culprits}))
    if named and any(set(named) <= set(ranks) for ranks in sides):
        return named
    return minority(*sides) if len(sides) == 2 else ()


def _counted(first: Finding, others: Sequence[Finding]) -> str:
    """How often else the condition parted ranks, and where."""
    groups = {one.group.name for one in others if one.group is not None and one.group != first.group}
    where = f", in {counted(len(groups), 'other group')}" if groups else ""
    inside = [side for other in others if _is_inside(other) for side in other.sides]
    sources = {_line(one.source): one.source for side in inside for one in side.sources}
    new = [source_text(source) for line, source in sources.items() if line not in _lines(first)]
    more = f" and {len(new) - _SHOWN} more lines" if len(new) > _SHOWN else ""
    lines = f", also at {', '.join(new[:_SHOWN])}{more}" if new else ""
    often = "once more" if len(others) == 1 else f"{len(others)} times more"
    return f"the same condition parted ranks {often}{where}{lines}"
