"""How the ranks of a dry run ended, and of which of them nothing is known after that.

A rank that was ended for its time or its memory, or by ``--steps``, would have gone on. So might one that failed at a
line that reads a value from others, or a key that another rank would have set: that a dry run can only guess.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

import numpy as np

from simcoll.lone_ranks import LoneEnd
from simcoll.preflight_records import last_ns, reads
from simcoll.record import Source
from simcoll.steps_limit import STEPS_MADE
from simcoll.verifier.failures import source_of, text
from simcoll.verifier.trace import AWAITED, HANDED_ON, MemoryTrace, RankExit, Trace

_STORE_ERROR = "DistStoreError"

Line: TypeAlias = tuple[str, int]
"""A file and a line of it."""


class How(Enum):
    """How a rank's process ended."""

    FINISHED = "finished"
    FAILED = "failed"
    OVERDUE = "ended for its time"
    KILLED = "ended for want of memory"
    CUT = "ended after the steps that were asked for"
    GUESSED = "failed on what a dry run can only guess"


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


def _how(trace: Trace | None, end: LoneEnd, guesses: Collection[Line]) -> How:
    if end.overdue:
        return How.OVERDUE
    if end.short:
        return How.KILLED
    events = () if trace is None else trace.events
    raised = next((event for event in events if event.kind == "exception"), None)
    if raised is not None and (text(raised, "type") == _STORE_ERROR or _line(source_of(raised.data)) in guesses):
        return How.GUESSED
    if any(event.kind == STEPS_MADE for event in events):
        return How.CUT
    return How.FAILED if end.exit_code else How.FINISHED


def _guesses(traces: Sequence[Trace]) -> set[Line]:
    """The lines at which ranks read received values, and where a check fails on all of them that have received any."""
    lines = {_line(source) for trace in traces for source in reads(trace)}
    failed = [_failed_check(trace) for trace in traces]
    if len(set(failed)) == 1 and failed[0] is not None:
        lines.add(failed[0])
    return lines


def _failed_check(trace: Trace) -> Line | None:
    met = any(len(group.ranks) > 1 for group in trace.groups) and len(trace.slots) > 0
    raised = (event for event in trace.events if event.kind == "exception")
    checks = [_line(source_of(event.data)) for event in raised if text(event, "type") == "AssertionError"]
    return checks[0] if checks and met else None


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
    slots = trace.slots[trace.slots["scheduled_ns"] <= cut].copy()
    late = slots["finished_ns"] > cut
    slots["flags"][late] &= ~np.uint8(AWAITED)
    slots["flags"][slots["flags"] & AWAITED == 0] |= HANDED_ON
    return replace(trace, slots=slots, events=[event for event in events if event.time_ns < cut])
