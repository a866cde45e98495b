"""The ends of a dry run's ranks, and which ranks would have gone on in the real run.

A rank that was ended by its time or memory limit, or by ``--steps``, would have gone on. So might one that failed at a
line that reads a value from others, or a key that another rank would have set: a dry run can only guess those.

A difference that may only follow from different branches on guessed values is no finding either: a rank that runs
alone guesses the values that the others would send it. Ranks that read such a value may take different branches, and
make different calls, although all of them would take the same branch in the real run. Two ranks diverge if the outcomes
of one line differ at a read that both have made.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import numpy as np

from simcoll.core.ranges import ranks_text
from simcoll.core.record import Source, source_of, text
from simcoll.core.trace import AWAITED, HANDED_ON, MemoryTrace, RankExit, Trace
from simcoll.dryrun.rank.event_kinds import BRANCH, ENDLESS, STEPS_MADE, UNKNOWN_OBJECTS
from simcoll.dryrun.records import Line, last_ns, tainted_reads
from simcoll.verifier.findings.finding import Finding
from simcoll.verifier.findings.rules import CALL_SKIPPED

Branches: TypeAlias = tuple[tuple[Line, tuple[object, ...]], ...]
"""The outcomes of each line's reads, in order."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where ranks took different branches at a line: most of them, and the others."""

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


def lacks_objects(trace: Trace) -> bool:
    """True if a rank's program went on without objects that other ranks would have sent."""
    return any(event.kind == UNKNOWN_OBJECTS for event in trace.events)


def assumes_keys(trace: Trace) -> bool:
    """True if a rank's program waited for keys of a store that no rank was known to set."""
    return any(event.kind == UNKNOWN_OBJECTS and event.data.get("waited") for event in trace.events)


def guessed_divergences(finding: Finding, traces: Sequence[Trace]) -> set[Line]:
    """The lines at which ranks of different sides of a finding diverged; none where the finding holds."""
    branches = {trace.rank: _branches(trace) for trace in traces}
    sides = [{branches[rank] for rank in side} for side in _sides(finding, branches)]
    pairs = [pair for here, there in itertools.combinations(sides, 2) for pair in itertools.product(here, there)]
    return {line for one, other in pairs if (line := _diverging_line(dict(one), dict(other))) is not None}


def follows_guessed_branch(finding: Finding, traces: Sequence[MemoryTrace]) -> bool:
    """True if a rank of the finding took a branch on a guessed value before the finding's call, or before its end."""
    for trace in traces:
        first = min((time_ns for _, _, time_ns in _reads(trace)), default=None)
        if first is not None and trace.rank in finding.ranks and first < _time_of(finding, trace):
            return True
    return False


def _time_of(finding: Finding, trace: MemoryTrace) -> int:
    """The time of a rank's call of a finding, in the trace's own times; that of its end where it makes none.

    A call that was skipped among others that look alike may be any of them, so that its time is not known.
    """
    group = finding.group
    if group is not None and finding.sequence is not None and finding.code != CALL_SKIPPED.code:
        index = [
            number for number, one in enumerate(trace.groups) if (one.name, one.ranks) == (group.name, group.ranks)
        ]
        slots = trace.slots
        rows = np.isin(slots["group"], index) & (slots["sequence"] >= finding.sequence) & (slots["p2p_sequence"] == 0)
        if rows.any():
            return int(slots["scheduled_ns"][rows].min())
    return last_ns(trace)


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
    """The places where the outcomes of each line first differ, with the time of each rank's read there."""
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


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a rank's process: ``exit_code`` is negative for a signal; ``timed_out`` if it reached its time limit.

    ``out_of_memory`` is True if it failed after asking for memory beyond its limit, or was killed as the system had
    none. ``place`` is the line at which one was that reached its time limit, as far as it is known.
    """

    exit_code: int
    time_ns: int
    timed_out: bool = False
    out_of_memory: bool = False
    place: str = ""


_FAILURES_OF_OTHERS = ("DistStoreError", "CheckpointException")
"""Exceptions for a missing key that another rank sets, and for failures that ranks send each other as objects."""


class RankEnding(Enum):
    """The kind of end of a rank's process."""

    FINISHED = "finished"
    FAILED = "failed"
    TIMED_OUT = "ended by its time limit"
    OUT_OF_MEMORY = "ended for lack of memory"
    STEPS_DONE = "ended after the steps that were asked for"
    GUESSED = "failed on what a dry run can only guess"
    ENDLESS = "ended as it went round and round on a guessed value"
    DIVERGED = "not followed beyond the branch on a guessed value where ranks diverged"


_KNOWN = (RankEnding.FINISHED, RankEnding.FAILED)


@dataclass(frozen=True, slots=True)
class RankEndings:
    """The end of each rank, and the ranks' traces without the effects of an end that the dry run forced."""

    how: Mapping[int, RankEnding]
    exits: Mapping[int, RankExit]
    traces: Sequence[MemoryTrace]

    @property
    def unknown_after(self) -> frozenset[int]:
        """The ranks that would have gone on."""
        return frozenset(rank for rank, how in self.how.items() if how not in _KNOWN)

    def ranks(self, how: RankEnding) -> list[int]:
        """The ranks that ended this way."""
        return [rank for rank, one in self.how.items() if one is how]


def endings_of(traces: Sequence[Trace], judged: Sequence[MemoryTrace], ends: Mapping[int, ProcessEnd]) -> RankEndings:
    """Classify the ends of ranks; ``judged`` are the comparable traces."""
    by_rank = {trace.rank: trace for trace in traces}
    guesses = _guesses(traces)
    how = {rank: _how(by_rank.get(rank), end, guesses) for rank, end in sorted(ends.items())}
    kept = [_without_forced_end(trace, how.get(trace.rank, RankEnding.FINISHED)) for trace in judged]
    last = {trace.rank: last_ns(trace) for trace in kept}
    exits = {
        rank: RankExit(ends[rank].exit_code, last.get(rank, 1), how[rank] not in (*_KNOWN, RankEnding.STEPS_DONE))
        for rank in how
    }
    return RankEndings(how, exits, kept)


def until_divergence(ends: RankEndings, divergences: Sequence[Mapping[int, int]]) -> RankEndings:
    """The endings with traces up to where ranks diverged; ``divergences`` are times by rank."""
    limits: dict[int, int] = {}
    for times in divergences:
        limits |= {rank: min(time_ns, limits.get(rank, time_ns)) for rank, time_ns in times.items()}
    traces = [_upto(trace, limits[trace.rank]) if trace.rank in limits else trace for trace in ends.traces]
    how = {rank: RankEnding.DIVERGED if rank in limits else one for rank, one in ends.how.items()}
    last = {trace.rank: last_ns(trace) for trace in traces if trace.rank in limits}
    exits = {rank: RankExit(0, last[rank]) if rank in last else end for rank, end in ends.exits.items()}
    return RankEndings(how, exits, traces)


def among(ends: RankEndings, ranks: Collection[int]) -> RankEndings:
    """The endings of these ranks, as if no others had run."""
    how = {rank: one for rank, one in ends.how.items() if rank in ranks}
    exits = {rank: one for rank, one in ends.exits.items() if rank in ranks}
    return RankEndings(how, exits, [trace for trace in ends.traces if trace.rank in ranks])


def _how(trace: Trace | None, end: ProcessEnd, guesses: Collection[Line]) -> RankEnding:
    if end.timed_out:
        return RankEnding.TIMED_OUT
    if end.out_of_memory:
        return RankEnding.OUT_OF_MEMORY
    events = () if trace is None else trace.events
    if any(event.kind == ENDLESS for event in events):
        return RankEnding.ENDLESS
    raised = next((event for event in events if event.kind == "exception"), None)
    if raised is not None and text(raised, "type") in _FAILURES_OF_OTHERS:
        return RankEnding.GUESSED
    if trace is not None and raised is not None and _line(source_of(raised.data)) in guesses and _has_received(trace):
        return RankEnding.GUESSED
    if raised is not None and any(event.kind == UNKNOWN_OBJECTS and event.data.get("stopped") for event in events):
        return RankEnding.GUESSED
    if any(event.kind == STEPS_MADE for event in events):
        return RankEnding.STEPS_DONE
    return RankEnding.FAILED if end.exit_code else RankEnding.FINISHED


def _has_received(trace: Trace) -> bool:
    """True if a rank may hold a value from others: it has made a call, or read one by another way."""
    return len(trace.slots) > 0 or lacks_objects(trace) or bool(tainted_reads(trace))


def _guesses(traces: Sequence[Trace]) -> set[Line]:
    """The lines that read received values, and those at which all ranks that received some fail.

    The latter are failed checks of values, and failures of ranks that lack an object of another rank.
    """
    lines = {_line(source) for trace in traces for source in tainted_reads(trace)}
    lines = lines.union(*map(branch_lines, traces))
    missing_objects = [trace for trace in traces if lacks_objects(trace)]
    for failed in ([_failed_check(trace) for trace in traces], [_failed_at(trace) for trace in missing_objects]):
        lines |= {line for line in set(failed) if line is not None and len(set(failed)) == 1}
    return lines


def _failed_check(trace: Trace) -> Line | None:
    met = any(len(group.ranks) > 1 for group in trace.groups) and len(trace.slots) > 0
    return _failed_at(trace, "AssertionError") if met else None


def _failed_at(trace: Trace, only: str | None = None) -> Line | None:
    """The line at which a rank failed, with an exception of type ``only`` if that is given."""
    raised = (event for event in trace.events if event.kind == "exception")
    lines = [_line(source_of(event.data)) for event in raised if only is None or text(event, "type") == only]
    return lines[0] if lines else None


def _line(source: Source) -> Line:
    return source.file, source.line


def _without_forced_end(trace: MemoryTrace, how: RankEnding) -> MemoryTrace:
    if how in _KNOWN:
        return trace
    events = [event for event in trace.events if event.kind != "exception"]
    stop = next((event.time_ns for event in events if event.kind == STEPS_MADE), None)
    if stop is None:
        return replace(trace, events=events)
    # Calls that the program makes while its frames unwind would not happen here in the real run.
    return _upto(replace(trace, events=events), stop)


def _upto(trace: MemoryTrace, stop: int) -> MemoryTrace:
    """Cuts the trace of a rank that would have gone on at time ``stop`` (nanoseconds)."""
    slots = trace.slots[trace.slots["scheduled_ns"] <= stop].copy()
    late = slots["finished_ns"] > stop
    slots["flags"][late] &= ~np.uint8(AWAITED)
    slots["flags"][slots["flags"] & AWAITED == 0] |= HANDED_ON
    return replace(trace, slots=slots, events=[event for event in trace.events if event.time_ns < stop])
