"""The records that the real run would leave, from a replay: calls that would not complete are pending, and last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from simcoll.core.record import State
from simcoll.core.trace import AWAITED, MemoryTrace
from simcoll.dryrun.p2p_matching import ANY_SOURCE_SPELLING
from simcoll.dryrun.rank.event_kinds import THREAD
from simcoll.dryrun.replay import BLOCK, LAUNCH, WAIT, ReplayResult, ThreadProgress
from simcoll.spec.call import ANY_SOURCE, Call

_NEVER = np.iinfo(np.int64).max


def with_replay_results(trace: MemoryTrace, replayed: ReplayResult) -> MemoryTrace:
    """The trace with the replay's results: calls that never complete, and the sources of receives from any source."""
    slots = trace.slots.copy()
    pending = ~replayed.done[trace.rank] & (slots["state"] == State.COMPLETED)
    slots["state"][pending], slots["finished_ns"][pending] = State.STARTED, 0
    signatures = list(trace.signatures)
    _name_any_sources(trace.rank, slots, signatures, replayed)
    events = [event for event in trace.events if event.kind != THREAD]
    return replace(trace, slots=slots, signatures=signatures, events=events)


def truncated(trace: MemoryTrace, replayed: ReplayResult) -> MemoryTrace:
    """The trace up to where its rank blocks; unchanged where the rank reaches its end."""
    threads = replayed.threads[trace.rank]
    if all(thread.ended for thread in threads):
        return trace
    slots, main = trace.slots.copy(), threads[0]
    # Nothing comes after the time at which the main thread blocks.
    stop = _NEVER if main.ended else main.program.times[main.at]
    pending = slots["state"] == State.STARTED
    slots["flags"][pending] &= ~np.uint8(AWAITED)
    for row in blocked_rows(threads, recorded=True):
        slots["flags"][row] |= AWAITED
    made = _launched(threads, len(slots)) | ((slots["state"] == State.REJECTED) & (slots["scheduled_ns"] <= stop))
    events = [event for event in trace.events if event.time_ns <= stop and event.kind != "exit"]
    return replace(trace, slots=slots[made], events=events)


def unfinished_from(trace: MemoryTrace, first: Mapping[tuple[str, tuple[int, ...]], int]) -> MemoryTrace:
    """The trace with collectives pending from a sequence number on, by each group's name and members."""
    slots = trace.slots.copy()
    for index, group in enumerate(trace.groups):
        if (number := first.get((group.name, group.ranks))) is not None:
            later = (slots["group"] == index) & (slots["p2p_sequence"] == 0) & (slots["sequence"] >= number)
            slots["state"][later] = State.STARTED
    return replace(trace, slots=slots)


def main_thread_is_blocked(threads: Sequence[ThreadProgress]) -> bool:
    """Whether a rank's main thread is blocked; where it has ended, another thread is."""
    return not threads[0].ended


def blocked_rows(threads: Sequence[ThreadProgress], *, recorded: bool = False) -> list[int]:
    """The rows of calls in which a rank's threads are blocked; ``recorded`` leaves out waits that no record shows."""
    return [
        thread.program.subjects[thread.at]
        for thread in threads
        if not thread.ended and thread.program.kinds[thread.at] in (BLOCK, WAIT)
        if not recorded or thread.program.times[thread.at] < _NEVER
    ]


def _launched(threads: Sequence[ThreadProgress], count: int) -> npt.NDArray[np.bool_]:
    """Mask of the calls that threads launched before they blocked."""
    made = np.zeros(count, np.bool_)
    for thread in threads:
        upto = thread.at + (not thread.ended)
        kinds = np.array(thread.program.kinds[:upto], np.int64)
        subjects = np.array(thread.program.subjects[:upto], np.int64)
        made[subjects[(kinds == LAUNCH) | (kinds == BLOCK)]] = True
    return made


def _name_any_sources(rank: int, slots: npt.NDArray[Any], signatures: list[Call], replayed: ReplayResult) -> None:
    """Set the source of each receive from any source, in place of the one that the rank guessed alone."""
    spelled = np.array([call.spelling == ANY_SOURCE_SPELLING for call in signatures], np.bool_)
    if not spelled.any():
        return
    known = {call: index for index, call in enumerate(signatures)}
    for row in np.flatnonzero(spelled[slots["signature"]]).tolist():
        source = replayed.taken.get((rank, row), ANY_SOURCE)
        call = replace(signatures[int(slots["signature"][row])], peer=source)
        if call not in known:
            known[call] = len(signatures)
            signatures.append(call)
        slots["signature"][row] = known[call]
