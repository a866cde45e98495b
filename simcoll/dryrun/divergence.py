"""Which ways the ranks of a dry run went, and which findings may only follow from that they went different ones.

A rank alone guesses what the others would send it. Where a line reads such a value, ranks may go different ways there
that would all go the same one in the real run, and then make different calls: that is no finding. Two ranks went
different ways if the outcomes of one line differ at a read that both have made.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from simcoll.core.ranges import ranks_text
from simcoll.core.trace import MemoryTrace, Trace
from simcoll.dryrun.rank.taint import WAY
from simcoll.dryrun.records import Line
from simcoll.verifier.findings.finding import Finding

Ways: TypeAlias = tuple[tuple[Line, tuple[object, ...]], ...]
"""What came of each line's reads, in order."""


@dataclass(frozen=True, slots=True)
class Parting:
    """Where ranks first went different ways at a line: most of them, and the others."""

    line: Line
    most: tuple[int, ...]
    others: tuple[int, ...]

    def note(self) -> str:
        """What the report says of it."""
        return (
            f"{ranks_text(self.most)} and {ranks_text(self.others)} went different ways at {self.line[0]}:"
            f"{self.line[1]} on a value received from other ranks, which a dry run can only guess: nothing is known "
            f"beyond that"
        )


def decided(trace: Trace) -> set[Line]:
    """The lines at which a rank's program went one of several ways."""
    return {line for line, *_ in _reads(trace)}


def may_be_guessed(finding: Finding, traces: Sequence[Trace]) -> set[Line]:
    """The lines at which ranks of different sides of a finding went different ways; none where it stands."""
    ways = {trace.rank: _ways(trace) for trace in traces}
    sides = [{ways[rank] for rank in side} for side in _sides(finding, ways)]
    pairs = [pair for here, there in itertools.combinations(sides, 2) for pair in itertools.product(here, there)]
    return {line for one, other in pairs if (line := _differ(dict(one), dict(other))) is not None}


def same_ways(traces: Sequence[Trace]) -> list[list[int]]:
    """Ranks none of which went another way than the others of its list, the longest list first; each is in one."""
    classes: list[tuple[list[int], set[Ways]]] = []
    ways = {trace.rank: _ways(trace) for trace in traces}
    for rank, own in sorted(ways.items(), key=lambda item: -sum(len(outcomes) for _, outcomes in item[1])):
        for ranks, known in classes:
            if own in known or all(_differ(dict(own), dict(one)) is None for one in known):
                ranks.append(rank)
                known.add(own)
                break
        else:
            classes.append(([rank], {own}))
    return sorted((sorted(ranks) for ranks, _ in classes), key=len, reverse=True)


def first_partings(traces: Sequence[MemoryTrace]) -> list[tuple[Parting, dict[int, int]]]:
    """Where the outcomes of each line first differ, and when each rank that read it then did."""
    reads: dict[tuple[Line, int], dict[int, tuple[object, int]]] = {}
    for trace in traces:
        counts: dict[Line, int] = {}
        for line, taken, time_ns in _reads(trace):
            counts[line] = place = counts.get(line, 0) + 1
            reads.setdefault((line, place), {})[trace.rank] = taken, time_ns
    found: dict[Line, tuple[Parting, dict[int, int]]] = {}
    for (line, _), outcomes in sorted(reads.items(), key=lambda item: item[0][1]):
        if line not in found and len({taken for taken, _ in outcomes.values()}) > 1:
            times = {rank: time_ns for rank, (_, time_ns) in outcomes.items()}
            found[line] = _parting(line, {rank: taken for rank, (taken, _) in outcomes.items()}), times
    return list(found.values())


def _parting(line: Line, taken: Mapping[int, object]) -> Parting:
    alike: dict[object, list[int]] = {}
    for rank, one in taken.items():
        alike.setdefault(one, []).append(rank)
    most = max(alike.values(), key=len)
    return Parting(line, tuple(most), tuple(rank for rank in taken if rank not in most))


def _sides(finding: Finding, ways: Mapping[int, Ways]) -> list[list[int]]:
    """The ranks that disagree; of a finding that names one side, the others are those of its group, or all."""
    sides = [side for one in finding.sides if (side := [rank for rank in one.ranks if rank in ways])]
    if len(sides) >= 2:
        return sides
    own = [rank for rank in finding.culprits or finding.ranks if rank in ways]
    members = ways if finding.group is None else finding.group.ranks
    others = [rank for rank in members if rank in ways and rank not in own]
    return [own, others]


def _ways(trace: Trace) -> Ways:
    found: dict[Line, list[object]] = {}
    for line, taken, _ in _reads(trace):
        found.setdefault(line, []).append(taken)
    return tuple((line, tuple(outcomes)) for line, outcomes in sorted(found.items()))


def _reads(trace: Trace) -> Iterator[tuple[Line, object, int]]:
    """Which way the rank went at each read, and when."""
    for event in trace.events:
        if event.kind == WAY:
            line, taken = event.data.get("line"), event.data.get("taken")
            place = str(event.data.get("file")), line if isinstance(line, int) else 0
            yield place, taken if isinstance(taken, int) else None, event.time_ns


def _differ(one: Mapping[Line, Sequence[object]], other: Mapping[Line, Sequence[object]]) -> Line | None:
    for line in one.keys() & other.keys():
        if any(here != there for here, there in zip(one[line], other[line], strict=False)):
            return line
    return None
