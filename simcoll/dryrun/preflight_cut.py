"""The records of a dry run as those of the real run would be: calls that do not end are pending, and last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.trace import AWAITED, MemoryTrace
from simcoll.dryrun.lone_programs import BLOCK, COME, WAIT
from simcoll.dryrun.p2p_matching import ANY_SOURCE_SPELLING
from simcoll.dryrun.rank.event_kinds import THREAD
from simcoll.dryrun.replay import Course, Standing
from simcoll.spec.call import ANY_SOURCE, Call

_NEVER = np.iinfo(np.int64).max


def settled(trace: MemoryTrace, standing: Standing) -> MemoryTrace:
    """The trace with what the replay found out: which calls end at all, and whose messages were taken."""
    slots = trace.slots.copy()
    pending = ~standing.done[trace.rank] & (slots["state"] == State.COMPLETED)
    slots["state"][pending], slots["finished_ns"][pending] = State.STARTED, 0
    signatures = list(trace.signatures)
    _name_sources(trace.rank, slots, signatures, standing)
    events = [event for event in trace.events if event.kind != THREAD]
    return replace(trace, slots=slots, signatures=signatures, events=events)


def cut(trace: MemoryTrace, standing: Standing) -> MemoryTrace:
    """A settled trace up to where its rank stands; as it is where the rank comes to its end."""
    courses = standing.courses[trace.rank]
    if all(course.ended for course in courses):
        return trace
    slots, stop = trace.slots.copy(), _stop(courses[0])
    pending = slots["state"] == State.STARTED
    slots["flags"][pending] &= ~np.uint8(AWAITED)
    for row in _stands_at(courses, seen=True):
        slots["flags"][row] |= AWAITED
    made = _made(courses, len(slots)) | ((slots["state"] == State.REJECTED) & (slots["scheduled_ns"] <= stop))
    events = [event for event in trace.events if event.time_ns <= stop and event.kind != "exit"]
    return replace(trace, slots=slots[made], events=events)


def unfinished_from(trace: MemoryTrace, first: Mapping[tuple[str, tuple[int, ...]], int]) -> MemoryTrace:
    """The trace with a group's collectives pending from a number on; groups go by name and members."""
    slots = trace.slots.copy()
    for index, group in enumerate(trace.groups):
        if (number := first.get((group.name, group.ranks))) is not None:
            later = (slots["group"] == index) & (slots["p2p_sequence"] == 0) & (slots["sequence"] >= number)
            slots["state"][later] = State.STARTED
    return replace(trace, slots=slots)


def stands_inside(courses: Sequence[Course]) -> bool:
    """Whether a rank's main thread stands in torch; where it has ended, another thread does."""
    return not courses[0].ended


def stands_in(courses: Sequence[Course]) -> list[int]:
    """The rows of the calls in which a rank's threads stand."""
    return _stands_at(courses, seen=False)


def _stop(main: Course) -> int:
    """When the main thread stands: nothing comes after that."""
    return _NEVER if main.ended else main.strand.times[main.at]


def _stands_at(courses: Sequence[Course], *, seen: bool) -> list[int]:
    """The rows in which strands stand; ``seen`` leaves out waits that no record shows."""
    return [
        course.strand.subjects[course.at]
        for course in courses
        if not course.ended and course.strand.kinds[course.at] in (BLOCK, WAIT)
        if not seen or course.strand.times[course.at] < _NEVER
    ]


def _made(courses: Sequence[Course], count: int) -> npt.NDArray[np.bool_]:
    """The calls that strands came to before they stood."""
    made = np.zeros(count, np.bool_)
    for course in courses:
        upto = course.at + (not course.ended)
        kinds = np.array(course.strand.kinds[:upto], np.int64)
        subjects = np.array(course.strand.subjects[:upto], np.int64)
        made[subjects[(kinds == COME) | (kinds == BLOCK)]] = True
    return made


def _name_sources(rank: int, slots: npt.NDArray[Any], signatures: list[Call], standing: Standing) -> None:
    """Write down whose messages receives from any source took, in place of what the rank guessed alone."""
    spelled = np.array([call.spelling == ANY_SOURCE_SPELLING for call in signatures], np.bool_)
    if not spelled.any():
        return
    known = {call: index for index, call in enumerate(signatures)}
    for row in np.flatnonzero(spelled[slots["signature"]]).tolist():
        source = standing.taken.get((rank, row), ANY_SOURCE)
        call = replace(signatures[int(slots["signature"][row])], peer=source)
        if call not in known:
            known[call] = len(signatures)
            signatures.append(call)
        slots["signature"][row] = known[call]
