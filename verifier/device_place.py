"""In which of its calls a rank's device is, as far as the records of all ranks tell."""

from __future__ import annotations

from collections.abc import Mapping

from simcoll.record import Record, State
from simcoll.verifier.device_queue import open_rows
from simcoll.verifier.trace import ON_DEVICE, Trace, lives, record_at


def device_record(traces: Mapping[int, Trace], rank: int) -> Record | None:
    """The call at which a rank's device is; None where none is under way."""
    row = device_row(traces, rank)
    return None if row is None else record_at(traces[rank], row)


def device_row(traces: Mapping[int, Trace], rank: int) -> int | None:
    """The row of the first call that is not known to have ended; of one that runs, if the first is not seen to.

    A collective whose end a peer has seen is over, or nearly so, also on a rank that has not looked.
    """
    trace = traces.get(rank)
    if trace is None or not len(rows := open_rows(trace)):
        return None
    left = (row for row in rows.tolist() if not _ended_elsewhere(traces, trace, row))
    first = next(left, int(rows[-1]))
    if _runs(trace, first):
        return first
    # A call behind one that waits runs on a stream of its own.
    return next((row for row in rows.tolist() if row > first and _runs(trace, row)), first)


def _runs(trace: Trace, row: int) -> bool:
    slot = trace.slots[row]
    return bool(int(slot["flags"]) & ON_DEVICE) and int(slot["state"]) == State.STARTED


def _ended_elsewhere(traces: Mapping[int, Trace], trace: Trace, row: int) -> bool:
    slot = trace.slots[row]
    group = int(slot["group"])
    if slot["p2p_sequence"] or group >= len(trace.groups):
        return False
    life = lives(trace)[group]
    for rank in life[1]:
        other = traces.get(rank)
        if other is None or other is trace or life not in (theirs := lives(other)):
            continue
        mine = other.slots["group"] == theirs.index(life)
        mine &= (other.slots["sequence"] == slot["sequence"]) & (other.slots["p2p_sequence"] == 0)
        if (other.slots["state"][mine] == State.COMPLETED).any():
            return True
    return False
