"""Which branches ranks took on guessed values, and which findings may only follow from different branches.

A rank that runs alone guesses what the others would send it. Where a line reads such a value, ranks may take different
branches that would all take the same one in the real run, and then make different calls: that is no finding. Two ranks
diverge if the outcomes of one line differ at a read that both have made.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from simcoll.core.ranges import ranks_text
from simcoll.core.trace import MemoryTrace, Trace
from simcoll.dryrun.rank.event_kinds import BRANCH
from simcoll.dryrun.records import Line
from simcoll.verifier.findings.finding import Finding

Branches: TypeAlias = tuple[tuple[Line, tuple[object, ...]], ...]
"""The outcomes of each line's reads, in order."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where ranks first took different branches at a line: most of them, and the others."""

    line: Line
    most: tuple[int, ...]
    others: tuple[int, ...]

    def note(self) -> str:
        """The note about it in the report."""
        return (
            f"{ranks_text(self.most)} and {ranks_text(self.others)} went different ways at {self.line[0]}:"
            f"{self.line[1]} on a value received from other ranks, which a dry run can only guess: nothing is known "
            f"beyond that"
        )


def branch_lines(trace: Trace) -> set[Line]:
    """The lines at which a rank's program took a branch on a guessed value."""
    return {line for line, *_ in _reads(trace)}


def guessed_divergences(finding: Finding, traces: Sequence[Trace]) -> set[Line]:
    """The lines at which ranks of different sides of a finding diverged; none where the finding holds."""
    branches = {trace.rank: _branches(trace) for trace in traces}
    sides = [{branches[rank] for rank in side} for side in _sides(finding, branches)]
    pairs = [pair for here, there in itertools.combinations(sides, 2) for pair in itertools.product(here, there)]
    return {line for one, other in pairs if (line := _diverging_line(dict(one), dict(other))) is not None}


def ranks_on_same_branches(traces: Sequence[Trace]) -> list[list[int]]:
    """Lists of ranks that took the same branches, the longest first; each rank is in one."""
    classes: list[tuple[list[int], set[Branches]]] = []
    branches = {trace.rank: _branches(trace) for trace in traces}
    for rank, own in sorted(branches.items(), key=lambda item: -sum(len(outcomes) for _, outcomes in item[1])):
        for ranks, known in classes:
            if own in known or all(_diverging_line(dict(own), dict(one)) is None for one in known):
                ranks.append(rank)
                known.add(own)
                break
        else:
            classes.append(([rank], {own}))
    return sorted((sorted(ranks) for ranks, _ in classes), key=len, reverse=True)


def first_divergences(traces: Sequence[MemoryTrace]) -> list[tuple[Divergence, dict[int, int]]]:
    """Where the outcomes of each line first differ, and when each rank made that read."""
    tainted_reads: dict[tuple[Line, int], dict[int, tuple[object, int]]] = {}
    for trace in traces:
        counts: dict[Line, int] = {}
        for line, taken, time_ns in _reads(trace):
            counts[line] = place = counts.get(line, 0) + 1
            tainted_reads.setdefault((line, place), {})[trace.rank] = taken, time_ns
    found: dict[Line, tuple[Divergence, dict[int, int]]] = {}
    for (line, _), outcomes in sorted(tainted_reads.items(), key=lambda item: item[0][1]):
        if line not in found and len({taken for taken, _ in outcomes.values()}) > 1:
            times = {rank: time_ns for rank, (_, time_ns) in outcomes.items()}
            found[line] = _divergence(line, {rank: taken for rank, (taken, _) in outcomes.items()}), times
    return list(found.values())


def _divergence(line: Line, taken: Mapping[int, object]) -> Divergence:
    places_agree: dict[object, list[int]] = {}
    for rank, one in taken.items():
        places_agree.setdefault(one, []).append(rank)
    most = max(places_agree.values(), key=len)
    return Divergence(line, tuple(most), tuple(rank for rank in taken if rank not in most))


def _sides(finding: Finding, branches: Mapping[int, Branches]) -> list[list[int]]:
    """The ranks of each side of a finding; if it names one, the other is the rest of its group, or all other ranks."""
    sides = [side for one in finding.sides if (side := [rank for rank in one.ranks if rank in branches])]
    if len(sides) >= 2:
        return sides
    own = [rank for rank in finding.culprits or finding.ranks if rank in branches]
    members = branches if finding.group is None else finding.group.ranks
    others = [rank for rank in members if rank in branches and rank not in own]
    return [own, others]


def _branches(trace: Trace) -> Branches:
    found: dict[Line, list[object]] = {}
    for line, taken, _ in _reads(trace):
        found.setdefault(line, []).append(taken)
    return tuple((line, tuple(outcomes)) for line, outcomes in sorted(found.items()))


def _reads(trace: Trace) -> Iterator[tuple[Line, object, int]]:
    """The outcome of each read of a rank, and its time."""
    for event in trace.events:
        if event.kind == BRANCH:
            line, taken = event.data.get("line"), event.data.get("taken")
            place = str(event.data.get("file")), line if isinstance(line, int) else 0
            yield place, taken if isinstance(taken, int) else None, event.time_ns


def _diverging_line(one: Mapping[Line, Sequence[object]], other: Mapping[Line, Sequence[object]]) -> Line | None:
    for line in one.keys() & other.keys():
        if any(here != there for here, there in zip(one[line], other[line], strict=False)):
            return line
    return None
