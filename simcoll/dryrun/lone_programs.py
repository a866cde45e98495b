"""What each rank of a dry run did, as operations in order: come to a call, wait for one, make a group.

A rank alone waits for nobody, so that its record shows every wait where the program has it. A future that was handed
on is waited for somewhere that no record shows: at the end, at the latest. Calls of the program's own threads stand in
strands of their own, for one that waits holds up no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.trace import ASYNCHRONOUS, AWAITED, HANDED_ON, Trace
from simcoll.dryrun.rank.event_kinds import THREAD
from simcoll.verifier.findings.failures import number
from simcoll.verifier.halts.group_creation import Creation, creations_of

COME, BLOCK, WAIT, MAKE = 0, 1, 2, 3
"""What an operation does: come to a call and go on, come and wait, wait for an earlier one, make a group."""

_END = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Strand:
    """Operations of one thread: what each does, with which row of the trace (of `MAKE`: which creation), and when."""

    kinds: Sequence[int]
    subjects: Sequence[int]
    times: Sequence[int]
    thread: int = 0

    def __len__(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True, slots=True)
class LoneProgram:
    """One rank's strands, the main thread's first, and the groups that it made."""

    trace: Trace
    strands: Sequence[Strand]
    creations: Sequence[Creation]


def lone_program(trace: Trace) -> LoneProgram:
    """Read the operations off a rank's record; calls that were refused never ran."""
    slots = trace.slots
    ran = np.flatnonzero(slots["state"] != State.REJECTED)
    flags = slots["flags"][ran]
    awaited, handed_on = flags & AWAITED != 0, flags & HANDED_ON != 0
    made, ended = (slots[name][ran].astype(np.int64) for name in ("scheduled_ns", "finished_ns"))
    blocks = (flags & ASYNCHRONOUS == 0) & (slots["p2p_sequence"][ran] == 0) & awaited & ~handed_on
    told = ~blocks & awaited & (ended > 0)
    last = ~blocks & ~awaited & handed_on
    creations = creations_of(trace.rank, trace.events)
    kinds = [np.where(blocks, BLOCK, COME), np.full(told.sum(), WAIT), np.full(last.sum(), WAIT)]
    kinds.append(np.full(len(creations), MAKE))
    subjects = [ran, ran[told], ran[last], np.arange(len(creations))]
    times = [made, ended[told], np.full(last.sum(), _END), np.array([one.time_ns for one in creations], np.int64)]
    # A call that was made in the very instant in which a wait ended comes after it, but no wait before its own call.
    after = [
        np.ones(len(ran)),
        np.where(ended[told] > made[told], 0, 2),
        np.full(last.sum(), 2),
        np.ones(len(creations)),
    ]
    order = np.lexsort((np.concatenate(after), np.concatenate(times)))
    columns = [np.concatenate(column).astype(np.int64)[order] for column in (kinds, subjects, times)]
    return LoneProgram(trace, _strands(trace, *columns), creations)


def _strands(
    trace: Trace, kinds: npt.NDArray[np.int64], subjects: npt.NDArray[np.int64], times: npt.NDArray[np.int64]
) -> list[Strand]:
    switches = [(event.time_ns, number(event, "number") or 0) for event in trace.events if event.kind == THREAD]
    if not switches:
        return [_strand(kinds, subjects, times, 0)]
    made = np.where(kinds == MAKE, times, trace.slots["scheduled_ns"][np.where(kinds == MAKE, 0, subjects)])
    since = np.array([time for time, _ in switches])
    threads = np.array([0, *(thread for _, thread in switches)])[np.searchsorted(since, made, side="right")]
    return [
        _strand(kinds[threads == thread], subjects[threads == thread], times[threads == thread], thread)
        for thread in sorted({0, *threads.tolist()})
    ]


def _strand(kinds: npt.NDArray[Any], subjects: npt.NDArray[Any], times: npt.NDArray[Any], thread: int) -> Strand:
    return Strand(kinds.tolist(), subjects.tolist(), times.tolist(), thread)
