"""Folds findings by the condition that parted their ranks: one cause gives one finding.

A condition that ranks do not decide alike sends them past calls in each round of a loop, on each line of its branch and
in each group. The finding on the first call inside of it stands for all of them; the others are counted.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from simcoll.core.ranges import ranks_text, verb
from simcoll.core.record import Group, Source
from simcoll.core.trace import Trace
from simcoll.core.units import counted
from simcoll.verifier.findings.describe import minority, source_text
from simcoll.verifier.findings.finding import Finding, Parting, Severity, Side
from simcoll.verifier.findings.rules import CALL_SKIPPED, ORDER_SWAPPED, P2P_UNMATCHED
from simcoll.verifier.program_text.forks import fork_of
from simcoll.verifier.program_text.syntax import Loop, Step, nodes_within, steps_to
from simcoll.verifier.program_text.ways import function_of

_PRESENCE = (CALL_SKIPPED.code, ORDER_SWAPPED.code)
_ASKED = 64
"""Ranks whose records are looked at."""
_SHOWN = 3
"""Other lines that are named."""

_Line: TypeAlias = tuple[str, int]
"""A file and a line number."""


def one_per_condition(findings: Sequence[Finding], traces: Sequence[Trace]) -> tuple[Finding, ...]:
    """The findings on these traces, in their order, with one for each condition that parted ranks."""
    by_rank = {trace.rank: trace for trace in traces}
    causes: list[_Cause] = []
    places: dict[int, _Cause] = {}
    # Those that only follow come last: the condition may be found at a later call of its group.
    for place, finding in sorted(enumerate(findings), key=lambda one: (_rank_of(one[1]), one[0])):
        cause = next((one for one in causes if one.explains(finding, by_rank)), None)
        if cause is None and (finding.parted is not None or _missed(finding)):
            cause = _Cause(finding.parted)
            causes.append(cause)
        if cause is not None:
            cause.take(place, finding)
            places[place] = cause
    told = [places[place].told(place) if place in places else finding for place, finding in enumerate(findings)]
    return tuple(one for one in told if one is not None)


def _rank_of(finding: Finding) -> int:
    return 2 if finding.parted is None else int(_is_loop(finding.parted.source))


@dataclass(slots=True, eq=False)
class _Cause:
    """A condition, if it is known, and the findings whose ranks it parted, by their places.

    What these have in common with a further one is kept: a condition may part ranks in thousands of groups.
    """

    parted: Parting | None
    findings: dict[int, Finding] = field(default_factory=dict)
    _by_group: dict[Group | None, list[Finding]] = field(default_factory=dict)
    _peers: set[frozenset[int]] = field(default_factory=set)
    _places: set[frozenset[_Line]] = field(default_factory=set)
    _ways: set[tuple[_Line, ...]] = field(default_factory=set)

    def take(self, place: int, finding: Finding) -> None:
        """Add a finding."""
        self.findings[place] = finding
        self._by_group.setdefault(finding.group, []).append(finding)
        self._peers.add(_missed(finding))
        self._places.add(_lines(finding))
        if self.parted is not None:
            self._ways |= _callers(finding, self.parted)

    def explains(self, finding: Finding, traces: Mapping[int, Trace]) -> bool:
        """True for a finding whose ranks this condition parted."""
        found = self._by_group.get(finding.group, ())
        if self.parted is not None and any(_follows(finding, one, self.parted, traces) for one in found):
            return True
        if finding.parted is None:
            peers = _missed(finding)
            return bool(peers) and peers in self._peers
        if self.parted is None or _line(finding.parted.source) != _line(self.parted.source):
            return False
        if self.parted.behind:
            # Values of several calls may depend on one comparison with the rank, each by a mistake of its own.
            return _lines(finding) in self._places
        callers = _callers(finding, self.parted)
        return not callers or not self._ways or not callers.isdisjoint(self._ways) or not _is_local(self.parted.source)

    def told(self, place: int) -> Finding | None:
        """The finding that stands for the cause, in the first place of its findings; None in the other places."""
        if place != min(self.findings):
            return None
        found = [self.findings[one] for one in sorted(self.findings)]
        parted = [one for one in found if one.parted is not None]
        first = next((one for one in parted if _is_inside(one)), (parted or found)[0])
        if len(found) == 1:
            return first
        others = [one for one in found if one is not first]
        opened = first.message[:-1] + "; " if first.message.endswith(")") else f"{first.message} ("
        often = _counted(first, others) if parted else _waiting(others)
        ranks = tuple(sorted({rank for one in found for rank in one.ranks}))
        told = replace(first, message=f"{opened}{often})", ranks=ranks)
        if self.parted is None or (sides := _sides(parted)) is None:
            return told
        return replace(
            told, culprits=_blamed(found, [one for one, _ in sides]), parted=replace(self.parted, sides=sides)
        )


def _line(source: Source) -> _Line:
    return source.file, source.line


def _missed(finding: Finding) -> frozenset[int]:
    """The ranks that lack the other end of the message that a rank waits for."""
    asked = finding.code == P2P_UNMATCHED.code and finding.severity is Severity.ERROR and finding.sides
    return frozenset(finding.ranks).difference(finding.sides[0].ranks) if asked else frozenset()


def _waiting(others: Sequence[Finding]) -> str:
    """Who else waits for the same ranks."""
    waiting = {rank for one in others for rank in one.sides[0].ranks}
    return f"{ranks_text(waiting)} {verb(tuple(waiting), 'waits', 'wait')} for {ranks_text(_missed(others[0]))} as well"


def _lines(finding: Finding) -> frozenset[_Line]:
    return frozenset(_line(one.source) for side in finding.sides for one in side.sources)


def _stacks(side: Side) -> Iterator[tuple[Source, ...]]:
    yield from (one.source.stack for one in side.sources)
    if side.stood.file:
        yield side.stood.stack


def _frames(stack: Sequence[Source], parted: Source) -> tuple[Source, ...]:
    """The frames of a stack, innermost first, from that of the condition's function on; empty if it is not in it."""
    places = [place for place, one in enumerate(stack) if (one.file, one.function) == (parted.file, parted.function)]
    return tuple(stack[places[0] :]) if places else ()


def _callers(finding: Finding, parted: Parting) -> set[tuple[_Line, ...]]:
    """The ways by which ranks came to the function of the condition."""
    stacks = (stack for side in finding.sides for stack in _stacks(side))
    frames = (_frames(stack, parted.source) for stack in stacks)
    return {tuple(_line(frame) for frame in one[1:]) for one in frames if one}


def _is_loop(parted: Source) -> bool:
    """True for the head of a loop."""
    function = function_of(parted)
    found = () if function is None else nodes_within(function)
    return any(isinstance(node, Loop) and node.lineno == parted.line for node in found)


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
    return len(makers) == 1 and len(finding.sides) == 2 and any(True for _ in _lines_inside(finding, makers))


def _lines_inside(finding: Finding, sides: Sequence[Side]) -> Iterator[Source]:
    """The lines of sides that stand in the branch by which the ranks of a finding parted."""
    if finding.parted is None:
        return
    parted = finding.parted.source
    for source in (one.source for side in sides for one in side.sources):
        frames = _frames(source.stack, parted)
        forks = [fork_of(step) for step in _steps(frames[0])] if frames else []
        if any(fork is not None and fork.line == parted.line for fork in forks):
            yield source


def _steps(frame: Source) -> list[Step]:
    function = function_of(frame)
    return [] if function is None else steps_to(function, frame.line)


def _follows(finding: Finding, first: Finding, parted: Parting, traces: Mapping[int, Trace]) -> bool:
    """True, of two findings on one group, for calls of a loop that nobody skips alone, where ranks had parted in it by
    this condition.

    Each round makes them, or these ranks made them equally often. Once ranks have parted, the calls of later rounds are
    paired by what they look like.
    """
    if finding.code not in _PRESENCE or first.sequence is None:
        return False
    around = [step.parent for step in _steps(parted.source) if isinstance(step.parent, Loop)]
    if not around:
        return False
    if finding.parted is not None:
        heads = {(parted.source.file, getattr(loop, "lineno", 0)) for loop in around}
        return _line(finding.parted.source) in heads and _equally_often(finding, traces)
    stacks = [stack for side in finding.sides for stack in _stacks(side)]
    each = bool(stacks) and all(_each_round(stack, parted.source, around[-1]) for stack in stacks)
    return each or _equally_often(finding, traces)


def _equally_often(finding: Finding, traces: Mapping[int, Trace]) -> bool:
    """True if the ranks of a finding have made the calls of its lines equally often."""
    asked = [traces.get(rank) for rank in finding.ranks[:_ASKED]]
    stacks = {one.source.stack for side in finding.sides if side.call is not None for one in side.sources}
    known = [trace for trace in asked if trace is not None and finding.group is not None]
    if not stacks or len(known) < len(asked):
        return False
    return len({_made(trace, finding.group, stacks) for trace in known}) == 1


def _made(trace: Trace, group: Group | None, stacks: set[tuple[Source, ...]]) -> int:
    """The number of a rank's calls of a group with one of these stacks."""
    lines = [number for number, source in enumerate(trace.sources) if source.stack in stacks]
    groups = [number for number, one in enumerate(trace.groups) if one == group]
    return int((np.isin(trace.slots["source"], lines) & np.isin(trace.slots["group"], groups)).sum())


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
    sources = {_line(one): one for other in others for one in _lines_inside(other, other.sides)}
    new = [source_text(source) for line, source in sources.items() if line not in _lines(first)]
    more = f" and {len(new) - _SHOWN} more lines" if len(new) > _SHOWN else ""
    lines = f", also at {', '.join(new[:_SHOWN])}{more}" if new else ""
    often = "once more" if len(others) == 1 else f"{len(others)} times more"
    return f"the same condition parted ranks {often}{where}{lines}"
