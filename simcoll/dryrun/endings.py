"""How the ranks of a dry run ended, and of which of them nothing is known after that.

A rank that was ended for its time or its memory, or by ``--steps``, would have gone on. So might one that failed at a
line that reads a value from others, or a key that another rank would have set: that a dry run can only guess.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from simcoll.core.record import Source
from simcoll.core.trace import AWAITED, HANDED_ON, MemoryTrace, RankExit, Trace
from simcoll.dryrun.divergence import decided
from simcoll.dryrun.process_pool import LoneEnd
from simcoll.dryrun.rank.event_kinds import STEPS_MADE, UNKNOWN_OBJECTS
from simcoll.dryrun.records import Line, last_ns, reads
from simcoll.verifier.findings.failures import source_of, text

_OF_OTHERS = ("DistStoreError", "CheckpointException")
"""What is raised for want of a key that another rank sets, and where ranks tell each other in objects what failed."""


class How(Enum):
    """How a rank's process ended."""

    FINISHED = "finished"
    FAILED = "failed"
    OVERDUE = "ended for its time"
    KILLED = "ended for want of memory"
    CUT = "ended after the steps that were asked for"
    GUESSED = "failed on what a dry run can only guess"
    PARTED = "not followed beyond where ranks went different ways on a guess"


_KNOWN = (How.FINISHED, How.FAILED)


@dataclass(frozen=True, slots=True)
class Ends:
    """How each rank ended, and their traces without what came of that."""

    how: Mapping[int, How]
    exits: Mapping[int, RankExit]
    traces: Sequence[MemoryTrace]

    @property
    def unknown_after(self) -> frozenset[int]:
        """The ranks that would have gone on."""
        return frozenset(rank for rank, how in self.how.items() if how not in _KNOWN)

    def ranks(self, how: How) -> list[int]:
        """Those that ended so."""
        return [rank for rank, one in self.how.items() if one is how]


def ends_of(traces: Sequence[Trace], judged: Sequence[MemoryTrace], ends: Mapping[int, LoneEnd]) -> Ends:
    """Tell how ranks ended; ``judged`` are the traces made comparable."""
    by_rank = {trace.rank: trace for trace in traces}
    guesses = _guesses(traces)
    how = {rank: _how(by_rank.get(rank), end, guesses) for rank, end in sorted(ends.items())}
    kept = [_without_its_end(trace, how.get(trace.rank, How.FINISHED)) for trace in judged]
    last = {trace.rank: last_ns(trace) for trace in kept}
    exits = {
        rank: RankExit(ends[rank].exit_code, last.get(rank, 1), how[rank] not in (*_KNOWN, How.CUT)) for rank in how
    }
    return Ends(how, exits, kept)


def before(ends: Ends, partings: Sequence[Mapping[int, int]]) -> Ends:
    """The same up to where ranks went different ways; ``partings`` say when each of some ranks did."""
    limits: dict[int, int] = {}
    for times in partings:
        limits |= {rank: min(time_ns, limits.get(rank, time_ns)) for rank, time_ns in times.items()}
    traces = [_upto(trace, limits[trace.rank]) if trace.rank in limits else trace for trace in ends.traces]
    how = {rank: How.PARTED if rank in limits else one for rank, one in ends.how.items()}
    last = {trace.rank: last_ns(trace) for trace in traces if trace.rank in limits}
    exits = {rank: RankExit(0, last[rank]) if rank in last else end for rank, end in ends.exits.items()}
    return Ends(how, exits, traces)


def among(ends: Ends, ranks: Collection[int]) -> Ends:
    """The same of these ranks alone, as if no others had run."""
    how = {rank: one for rank, one in ends.how.items() if rank in ranks}
    exits = {rank: one for rank, one in ends.exits.items() if rank in ranks}
    return Ends(how, exits, [trace for trace in ends.traces if trace.rank in ranks])


def _how(trace: Trace | None, end: LoneEnd, guesses: Collection[Line]) -> How:
    if end.overdue:
        return How.OVERDUE
    if end.short:
        return How.KILLED
    events = () if trace is None else trace.events
    raised = next((event for event in events if event.kind == "exception"), None)
    if raised is not None and (text(raised, "type") in _OF_OTHERS or _line(source_of(raised.data)) in guesses):
        return How.GUESSED
    if any(event.kind == STEPS_MADE for event in events):
        return How.CUT
    return How.FAILED if end.exit_code else How.FINISHED


def _guesses(traces: Sequence[Trace]) -> set[Line]:
    """The lines at which ranks read received values, and where all of them fail that have received such things.

    These are checks of values, and whatever fails on the ranks that lack an object of another one's.
    """
    lines = {_line(source) for trace in traces for source in reads(trace)}
    lines = lines.union(*map(decided, traces))
    lacking = [trace for trace in traces if any(event.kind == UNKNOWN_OBJECTS for event in trace.events)]
    for failed in ([_failed_check(trace) for trace in traces], [_failed_at(trace) for trace in lacking]):
        lines |= {line for line in set(failed) if line is not None and len(set(failed)) == 1}
    return lines


def _failed_check(trace: Trace) -> Line | None:
    met = any(len(group.ranks) > 1 for group in trace.groups) and len(trace.slots) > 0
    return _failed_at(trace, "AssertionError") if met else None


def _failed_at(trace: Trace, only: str | None = None) -> Line | None:
    """The line at which a rank has failed, with an exception of that type if one is named."""
    raised = (event for event in trace.events if event.kind == "exception")
    lines = [_line(source_of(event.data)) for event in raised if only is None or text(event, "type") == only]
    return lines[0] if lines else None


def _line(source: Source) -> Line:
    return source.file, source.line


def _without_its_end(trace: MemoryTrace, how: How) -> MemoryTrace:
    if how in _KNOWN:
        return trace
    events = [event for event in trace.events if event.kind != "exception"]
    cut = next((event.time_ns for event in events if event.kind == STEPS_MADE), None)
    if cut is None:
        return replace(trace, events=events)
    # What a program does on its way out, with frames that are unwound, it would not have done here.
    return _upto(replace(trace, events=events), cut)


def _upto(trace: MemoryTrace, cut: int) -> MemoryTrace:
    """What a rank that would have gone on had done then."""
    slots = trace.slots[trace.slots["scheduled_ns"] <= cut].copy()
    late = slots["finished_ns"] > cut
    slots["flags"][late] &= ~np.uint8(AWAITED)
    slots["flags"][slots["flags"] & AWAITED == 0] |= HANDED_ON
    return replace(trace, slots=slots, events=[event for event in trace.events if event.time_ns < cut])
