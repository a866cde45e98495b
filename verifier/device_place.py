"""In which of its calls a rank's device is, as far as the records of all ranks tell."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simcoll.record import Record, State
from simcoll.verifier.device_queue import open_rows
from simcoll.verifier.trace import ON_DEVICE, Trace, lives, record_at


def device_record(traces: Mapping[int, Trace], rank: int) -> Record | None:
    """The call at which a rank's device is: one that runs, else the first that is not known to have ended.

    A collective whose end a peer has seen is over, or nearly so, also on a rank that has not looked.
    """
    trace = traces.get(rank)
    if trace is None or not len(rows := open_rows(trace)):
        return None
    slots = trace.slots[rows]
    running = np.flatnonzero((slots["flags"] & ON_DEVICE != 0) & (slots["state"] == State.STARTED))
    if len(running):
        return record_at(trace, int(rows[running[0]]))
    left = (row for row in rows.tolist() if not _ended_elsewhere(traces, trace, row))
    return record_at(trace, next(left, int(rows[-1])))


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
